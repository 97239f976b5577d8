-- KEYS[2] is the reservation; ARGV: time, and the used tokens, or an empty string to release the request. Returns the status.
-- Deletes the reservation, so that settling it again has no effect.

local used = tonumber(ARGV[2])
local number, entry, reserved = find_reservation(KEYS[2])
if number then
    local released = used and 0 or 1
    local change = (used or 0) - reserved
    requests, tokens = requests - released, tokens + change
    entry.requests, entry.tokens = entry.requests - released, entry.tokens + change
    write(number, entry)
    oldest, newest = nil, nil
    drop_empty_ends()
    save()
end
redis.call('DEL', KEYS[2])
return { status() }
