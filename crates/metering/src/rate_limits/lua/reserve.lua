-- KEYS[2] is the reservation; ARGV: time, requested tokens, requests per minute, tokens per minute.
-- Returns whether it is admitted, the waits for requests and for tokens, and the status.
-- Idempotent: a request that has a reservation keeps it, because a node that lost the response retries. With more tokens than
-- it has reserved, the reservation moves to now, if they fit.

local requested = tonumber(ARGV[2])
local requests_limit, tokens_limit = tonumber(ARGV[3]), tonumber(ARGV[4])

local own_number, own_entry, own_tokens = find_reservation(KEYS[2])
if own_number and own_tokens >= requested then
    return { 1, 0, 0, status() }
end
-- What the request itself has reserved makes room for the new reservation.
local own_requests = own_number and 1 or 0
own_tokens = own_tokens or 0

if requests - own_requests + 1 > requests_limit or tokens - own_tokens + requested > tokens_limit then
    local requests_wait, tokens_wait = 0, 0
    local left_requests, left_tokens = requests - own_requests, tokens - own_tokens
    local numbers = {}
    for index = 0, count - 1 do numbers[#numbers + 1] = first + index end
    local values = count > 0 and redis.call('HMGET', window_key, unpack(numbers)) or {}
    for index, value in ipairs(values) do
        local too_many, too_much = left_requests + 1 > requests_limit, left_tokens + requested > tokens_limit
        if not too_many and not too_much then break end
        local entry = unpacked(value)
        local wait = entry.to + WINDOW_US - now
        if too_many then requests_wait = wait end
        if too_much then tokens_wait = wait end
        left_requests, left_tokens = left_requests - entry.requests, left_tokens - entry.tokens
        if first + index - 1 == own_number then
            left_requests, left_tokens = left_requests + own_requests, left_tokens + own_tokens
        end
    end
    -- Otherwise each rejection would correct the clock again, and time would stand still while every request is rejected.
    if correction ~= stored_correction then save() end
    return { 0, requests_wait, tokens_wait, status() }
end

if own_number then
    requests, tokens = requests - own_requests, tokens - own_tokens
    own_entry.requests, own_entry.tokens = own_entry.requests - own_requests, own_entry.tokens - own_tokens
    write(own_number, own_entry)
    oldest, newest = nil, nil
    drop_empty_ends()
end

if count < EXACT_ENTRIES or now - newest.from >= ENTRY_SPAN_US then
    newest = { from = now, to = now, requests = 0, tokens = 0 }
    count = count + 1
end
newest.to, newest.requests, newest.tokens = now, newest.requests + 1, newest.tokens + requested
if count == 1 then oldest = newest end
requests, tokens = requests + 1, tokens + requested
-- The order matters: the entry may reuse the number of one that was just dropped.
save()
write(first + count - 1, newest)
redis.call('SET', KEYS[2], struct.pack('<ddd', first + count - 1, requested, newest.from), 'PX', KEY_TTL_MS)
return { 1, 0, 0, status() }
