-- KEYS[1] is the window. Returns the status; writes nothing.

return { status(open_window(KEYS[1])) }
