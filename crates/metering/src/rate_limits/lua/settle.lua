-- KEYS: the account's window and the reservation in it; if the key has limits of its own, the same for the key.
-- ARGV: time, and the used tokens, or an empty string to release the request. Returns the status of the account's window.
-- Deletes the reservations, so that settling them again has no effect.

local used = tonumber(ARGV[2])
local account
for index = 1, #KEYS / 2 do
    local window, reservation_key = open_window(KEYS[2 * index - 1]), KEYS[2 * index]
    local number, entry, reserved = find_reservation(window, reservation_key)
    if number then
        change_entry(window, number, entry, used and 0 or -1, (used or 0) - reserved)
        save(window)
    end
    redis.call('DEL', reservation_key)
    account = account or window
end
return { status(account) }
