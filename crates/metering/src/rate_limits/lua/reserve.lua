-- KEYS: the account's window and the reservation in it; if the key has limits of its own, the same for the key.
-- ARGV: time, requested tokens, and for each window its requests and its tokens per minute.
-- Returns whether it is admitted, and for each window the waits for requests and for tokens, and the status.
-- The request is admitted in all windows or in none.
-- Idempotent: a request that has a reservation keeps it, because a node that lost the response retries. With more tokens than
-- it has reserved, the reservation moves to now, if they fit.

local requested = tonumber(ARGV[2])

-- Returns whether the request fits. Sets the waits, and what `admit` needs.
local function check(window, requests_limit, tokens_limit)
    window.requests_wait, window.tokens_wait = 0, 0
    local own_number, own_entry, own_tokens = find_reservation(window, window.reservation_key)
    window.is_kept = own_number ~= nil and own_tokens >= requested
    if window.is_kept then return true end
    -- What the request itself has reserved makes room for the new reservation.
    local own_requests = own_number and 1 or 0
    own_tokens = own_tokens or 0
    window.own_number, window.own_entry, window.own_tokens = own_number, own_entry, own_tokens
    local left_requests, left_tokens = window.requests - own_requests, window.tokens - own_tokens
    if left_requests + 1 <= requests_limit and left_tokens + requested <= tokens_limit then return true end
    local numbers = {}
    for index = 0, window.count - 1 do numbers[#numbers + 1] = window.first + index end
    local values = window.count > 0 and redis.call('HMGET', window.key, unpack(numbers)) or {}
    for index, value in ipairs(values) do
        local too_many, too_much = left_requests + 1 > requests_limit, left_tokens + requested > tokens_limit
        if not too_many and not too_much then break end
        local entry = unpacked(value)
        local wait = entry.to + WINDOW_US - window.now
        if too_many then window.requests_wait = wait end
        if too_much then window.tokens_wait = wait end
        left_requests, left_tokens = left_requests - entry.requests, left_tokens - entry.tokens
        if window.first + index - 1 == own_number then
            left_requests, left_tokens = left_requests + own_requests, left_tokens + own_tokens
        end
    end
    return false
end

local function admit(window)
    if window.is_kept then return end
    if window.own_number then
        change_entry(window, window.own_number, window.own_entry, -1, -window.own_tokens)
    end
    if window.count < EXACT_ENTRIES or window.now - window.newest.from >= ENTRY_SPAN_US then
        window.newest = { from = window.now, to = window.now, requests = 0, tokens = 0 }
        window.count = window.count + 1
    end
    local newest = window.newest
    newest.to, newest.requests, newest.tokens = window.now, newest.requests + 1, newest.tokens + requested
    if window.count == 1 then window.oldest = newest end
    window.requests, window.tokens = window.requests + 1, window.tokens + requested
    -- The order matters: the entry may reuse the number of one that was just dropped.
    save(window)
    local number = window.first + window.count - 1
    write(window, number, newest)
    local packed = struct.pack('<ddd', number, requested, newest.from)
    redis.call('SET', window.reservation_key, packed, 'PX', KEY_TTL_MS)
end

local windows, fits = {}, true
for index = 1, #KEYS / 2 do
    local window = open_window(KEYS[2 * index - 1])
    window.reservation_key = KEYS[2 * index]
    local does_fit = check(window, tonumber(ARGV[2 * index + 1]), tonumber(ARGV[2 * index + 2]))
    fits = fits and does_fit
    windows[index] = window
end

local result = { fits and 1 or 0 }
for _, window in ipairs(windows) do
    if fits then
        admit(window)
    elseif window.correction ~= window.stored_correction then
        -- Otherwise each rejection would correct the clock again, and time would stand still while every request is rejected.
        save(window)
    end
    local numbers = { window.requests_wait, window.tokens_wait, status(window) }
    for _, number in ipairs(numbers) do result[#result + 1] = number end
end
return result
