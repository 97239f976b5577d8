-- KEYS[2] is the reservation; ARGV: time, and the tokens used, or nothing to take the request back. Gives the status.
-- The reservation is gone afterwards, so that settling it again changes nothing.

local used = tonumber(ARGV[2])
local number, entry, reserved = held(KEYS[2])
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
