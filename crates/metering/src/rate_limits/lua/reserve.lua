-- KEYS[2] is the reservation; ARGV: time, requested tokens, requests per minute, tokens per minute.
-- Returns whether it is admitted, the waits for requests and for tokens, and the status.
-- Idempotent: a request that has a reservation keeps it, because a node that lost the response retries.

local requested = tonumber(ARGV[2])
local requests_limit, tokens_limit = tonumber(ARGV[3]), tonumber(ARGV[4])

if find_reservation(KEYS[2]) then
    return { 1, 0, 0, status() }
end

if requests + 1 > requests_limit or tokens + requested > tokens_limit then
    local requests_wait, tokens_wait = 0, 0
    local left_requests, left_tokens = requests, tokens
    local numbers = {}
    for index = 0, count - 1 do numbers[#numbers + 1] = first + index end
    local values = count > 0 and redis.call('HMGET', window_key, unpack(numbers)) or {}
    for _, value in ipairs(values) do
        local too_many, too_much = left_requests + 1 > requests_limit, left_tokens + requested > tokens_limit
        if not too_many and not too_much then break end
        local entry = unpacked(value)
        local wait = entry.to + WINDOW_US - now
        if too_many then requests_wait = wait end
        if too_much then tokens_wait = wait end
        left_requests, left_tokens = left_requests - entry.requests, left_tokens - entry.tokens
    end
    -- Otherwise each rejection would correct the clock again, and time would stand still while every request is rejected.
    if correction ~= stored_correction then save() end
    return { 0, requests_wait, tokens_wait, status() }
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
