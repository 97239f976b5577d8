-- Returns the status; writes nothing.

return { status() }
