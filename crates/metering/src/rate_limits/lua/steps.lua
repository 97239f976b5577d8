-- Steps of requests of one account, in their order, as if each were a script of its own.
-- KEYS: for each step, the account's window and the reservation in it; if the key has limits of its own, the same for the key.
-- ARGV: the time, and for each step one of
--   'reserve', its number of windows, the requested tokens, and for each window its requests and its tokens per minute
--   'settle', its number of windows, and the used tokens, or an empty string to release the request
-- Returns for each 'reserve' whether it is admitted, and for each window the waits for requests and for tokens, and the status;
-- for each 'settle' the status of the account's window.
--
-- Reserve: the request is admitted in all windows or in none. Idempotent: a request that has a reservation keeps it, because a
-- node that lost the response retries. With more tokens than it has reserved, the reservation moves to now, if they fit.
-- Settle: deletes the reservations, so that settling them again has no effect.

local opened, windows_in_order, result = {}, {}, {}

-- A window is read by the first step that needs it, and saved after the last.
local function window_of(key)
    if not opened[key] then
        opened[key] = open_window(key)
        windows_in_order[#windows_in_order + 1] = opened[key]
    end
    return opened[key]
end

local function add_to_result(...)
    for _, number in ipairs({ ... }) do result[#result + 1] = number end
end

-- Returns whether the request fits. Sets the waits, and what `admit` needs.
local function check(window, requested, requests_limit, tokens_limit)
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
        local number = window.first + index - 1
        -- An earlier step may have changed it, or added it.
        local entry = window.entries[number] or unpacked(value)
        local wait = entry.to + WINDOW_US - window.now
        if too_many then window.requests_wait = wait end
        if too_much then window.tokens_wait = wait end
        left_requests, left_tokens = left_requests - entry.requests, left_tokens - entry.tokens
        if number == own_number then
            left_requests, left_tokens = left_requests + own_requests, left_tokens + own_tokens
        end
    end
    return false
end

local function admit(window, requested)
    if window.is_kept then return end
    if window.own_number then
        change_entry(window, window.own_number, window.own_entry, -1, -window.own_tokens)
    end
    if window.count < EXACT_ENTRIES or window.now - window.newest.from >= ENTRY_SPAN_US then
        window.newest = { from = window.now, to = window.now, requests = 0, tokens = 0 }
        window.count = window.count + 1
    end
    local newest, number = window.newest, window.first + window.count - 1
    newest.to, newest.requests, newest.tokens = window.now, newest.requests + 1, newest.tokens + requested
    if window.count == 1 then window.oldest = newest end
    window.requests, window.tokens = window.requests + 1, window.tokens + requested
    write(window, number, newest)
    window.is_changed = true
    local packed = struct.pack('<ddd', number, requested, newest.from)
    redis.call('SET', window.reservation_key, packed, 'PX', KEY_TTL_MS)
end

-- `keys` and `args` are the indexes of the step's first key and argument. Returns its number of arguments.
local function reserve(keys, args)
    local window_count, requested = tonumber(ARGV[args + 1]), tonumber(ARGV[args + 2])
    local windows, fits = {}, true
    for index = 1, window_count do
        local window = window_of(KEYS[keys + 2 * index - 2])
        window.reservation_key = KEYS[keys + 2 * index - 1]
        local requests_limit, tokens_limit = ARGV[args + 2 * index + 1], ARGV[args + 2 * index + 2]
        local does_fit = check(window, requested, tonumber(requests_limit), tonumber(tokens_limit))
        fits = fits and does_fit
        windows[index] = window
    end
    add_to_result(fits and 1 or 0)
    for _, window in ipairs(windows) do
        if fits then
            admit(window, requested)
        elseif window.correction ~= window.stored_correction then
            -- Otherwise each rejection would correct the clock again, and time would stand still while every request is rejected.
            window.is_changed = true
        end
        add_to_result(window.requests_wait, window.tokens_wait, status(window))
    end
    return 3 + 2 * window_count
end

local function settle(keys, args)
    local window_count, used = tonumber(ARGV[args + 1]), tonumber(ARGV[args + 2])
    for index = 1, window_count do
        local window, reservation_key = window_of(KEYS[keys + 2 * index - 2]), KEYS[keys + 2 * index - 1]
        local number, entry, reserved = find_reservation(window, reservation_key)
        if number then
            change_entry(window, number, entry, used and 0 or -1, (used or 0) - reserved)
            window.is_changed = true
        end
        redis.call('DEL', reservation_key)
    end
    add_to_result(status(window_of(KEYS[keys])))
    return 3
end

local keys, args = 1, 2
while args <= #ARGV do
    local window_count = tonumber(ARGV[args + 1])
    if ARGV[args] == 'reserve' then
        args = args + reserve(keys, args)
    else
        args = args + settle(keys, args)
    end
    keys = keys + 2 * window_count
end
for _, window in ipairs(windows_in_order) do
    if window.is_changed then save(window) end
end
return result
