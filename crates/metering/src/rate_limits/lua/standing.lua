-- Gives the standing; writes nothing.

return { standing() }
