-- Gives the status; writes nothing.

return { status() }
