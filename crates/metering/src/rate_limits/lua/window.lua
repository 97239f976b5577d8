-- The window of one account: `chancery_domain::SlidingWindow` in Lua. The conformance suite checks that the two agree. Every script
-- starts with this part; WINDOW_US, ENTRY_SPAN_US, EXACT_ENTRIES and KEY_TTL_MS are set before it.
--
-- KEYS[1] is a hash. Field `w` holds first, count, requests, tokens and clock correction; field N holds entry N as from,
-- to, requests, tokens. All are doubles, which are exact up to 2^53. Times are microseconds.
-- ARGV[1] is the time in tests. If it is empty, the Redis server's time is used, so that the nodes' clocks do not matter.

local window_key = KEYS[1]

local now = tonumber(ARGV[1])
if not now then
    local time = redis.call('TIME')
    now = time[1] * 1000000 + time[2]
end

local first, count, requests, tokens, correction = 0, 0, 0, 0, 0
local stored = redis.call('HGET', window_key, 'w')
if stored then
    first, count, requests, tokens, correction = struct.unpack('<ddddd', stored)
end
local stored_correction = correction

local dropped = {}

local function unpacked(value)
    local from, to, entry_requests, entry_tokens = struct.unpack('<dddd', value)
    return { from = from, to = to, requests = entry_requests, tokens = entry_tokens }
end

local function read(number)
    return unpacked(redis.call('HGET', window_key, number))
end

local function write(number, entry)
    redis.call('HSET', window_key, number, struct.pack('<dddd', entry.from, entry.to, entry.requests, entry.tokens))
end

-- Cached entries, so that each is read at most once.
local oldest, newest

local function drop_oldest()
    dropped[#dropped + 1] = first
    first, count = first + 1, count - 1
    oldest = nil
    if count == 0 then newest = nil end
end

-- Releasing can leave empty entries. Dropping them at the ends keeps the times in `status` exact.
local function drop_empty_ends()
    while count > 0 do
        oldest = oldest or read(first)
        if oldest.requests > 0 then break end
        drop_oldest()
    end
    while count > 0 do
        newest = newest or read(first + count - 1)
        if newest.requests > 0 then break end
        dropped[#dropped + 1] = first + count - 1
        count, newest = count - 1, nil
    end
end

-- If the clock is set back, entries would stay in the window until the clock catches up. So time continues from the newest
-- entry instead. Entries may then count too long, but never too short, and for no longer than a window.
now = now + correction
if count > 0 then
    newest = read(first + count - 1)
    if newest.to > now then
        correction = correction + newest.to - now
        now = newest.to
    end
end
while count > 0 do
    oldest = read(first)
    if oldest.to + WINDOW_US > now then break end
    requests, tokens = requests - oldest.requests, tokens - oldest.tokens
    drop_oldest()
end
drop_empty_ends()

local function save()
    if #dropped > 0 then
        redis.call('HDEL', window_key, unpack(dropped))
    end
    if count == 0 then
        redis.call('DEL', window_key)
        return
    end
    redis.call('HSET', window_key, 'w', struct.pack('<ddddd', first, count, requests, tokens, correction))
    redis.call('PEXPIRE', window_key, KEY_TTL_MS)
end

-- Returns a reservation's entry number, entry and tokens, while that entry is in the window.
local function find_reservation(reservation_key)
    local reservation = redis.call('GET', reservation_key)
    if not reservation then return end
    local number, reserved, from = struct.unpack('<ddd', reservation)
    if number < first or number >= first + count then return end
    local entry = read(number)
    -- Numbering restarts after the window was empty; an entry with another start time is a different one.
    if entry.from ~= from then return end
    return number, entry, reserved
end

-- Returns requests, tokens, and the times until the oldest and the newest entry expire.
local function status()
    if count == 0 then return requests, tokens, 0, 0 end
    return requests, tokens, oldest.to + WINDOW_US - now, newest.to + WINDOW_US - now
end
