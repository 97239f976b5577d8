-- Windows of one account: `chancery_domain::SlidingWindow` in Lua. The conformance suite checks that the two agree. Every script
-- starts with this part; WINDOW_US, ENTRY_SPAN_US, EXACT_ENTRIES and KEY_TTL_MS are set before it.
--
-- A window is a hash. Field `w` holds first, count, requests, tokens and clock correction; field N holds entry N as from,
-- to, requests, tokens. All are doubles, which are exact up to 2^53. Times are microseconds.
-- ARGV[1] is the time in tests. If it is empty, the Redis server's time is used, so that the nodes' clocks do not matter.

local server_now = tonumber(ARGV[1])
if not server_now then
    local time = redis.call('TIME')
    server_now = time[1] * 1000000 + time[2]
end

local function unpacked(value)
    local from, to, entry_requests, entry_tokens = struct.unpack('<dddd', value)
    return { from = from, to = to, requests = entry_requests, tokens = entry_tokens }
end

-- Entries are read once and written when the window is saved, so that several steps of a script share both.
local function read(window, number)
    local entry = window.entries[number]
    if not entry then
        entry = unpacked(redis.call('HGET', window.key, number))
        window.entries[number] = entry
    end
    return entry
end

local function write(window, number, entry)
    window.entries[number], window.written[number], window.dropped[number] = entry, true, nil
end

local function drop(window, number)
    window.entries[number], window.written[number], window.dropped[number] = nil, nil, true
end

local function drop_oldest(window)
    drop(window, window.first)
    window.first, window.count = window.first + 1, window.count - 1
    window.oldest = nil
    if window.count == 0 then window.newest = nil end
end

-- Releasing can leave empty entries. Dropping them at the ends keeps the times in `status` exact.
local function drop_empty_ends(window)
    while window.count > 0 do
        window.oldest = window.oldest or read(window, window.first)
        if window.oldest.requests > 0 then break end
        drop_oldest(window)
    end
    while window.count > 0 do
        local last = window.first + window.count - 1
        window.newest = window.newest or read(window, last)
        if window.newest.requests > 0 then break end
        drop(window, last)
        window.count, window.newest = window.count - 1, nil
    end
end

-- Reads a window as it is now. `oldest` and `newest` cache its entries at the ends, so that each is read at most once.
local function open_window(key)
    local window = {
        key = key, first = 0, count = 0, requests = 0, tokens = 0, correction = 0,
        entries = {}, written = {}, dropped = {},
    }
    local stored = redis.call('HGET', key, 'w')
    if stored then
        window.first, window.count, window.requests, window.tokens, window.correction =
            struct.unpack('<ddddd', stored)
    end
    window.stored_correction = window.correction
    -- If the clock is set back, entries would stay in the window until the clock catches up. So time continues from the
    -- newest entry instead. Entries may then count too long, but never too short, and for no longer than a window.
    window.now = server_now + window.correction
    if window.count > 0 then
        window.newest = read(window, window.first + window.count - 1)
        if window.newest.to > window.now then
            window.correction = window.correction + window.newest.to - window.now
            window.now = window.newest.to
        end
    end
    while window.count > 0 do
        window.oldest = read(window, window.first)
        if window.oldest.to + WINDOW_US > window.now then break end
        window.requests = window.requests - window.oldest.requests
        window.tokens = window.tokens - window.oldest.tokens
        drop_oldest(window)
    end
    drop_empty_ends(window)
    return window
end

local function save(window)
    if window.count == 0 then
        redis.call('DEL', window.key)
        return
    end
    local dropped = {}
    for number in pairs(window.dropped) do dropped[#dropped + 1] = number end
    if #dropped > 0 then
        redis.call('HDEL', window.key, unpack(dropped))
    end
    local fields = { 'w', struct.pack(
        '<ddddd', window.first, window.count, window.requests, window.tokens, window.correction
    ) }
    for number in pairs(window.written) do
        local entry = window.entries[number]
        fields[#fields + 1] = number
        fields[#fields + 1] = struct.pack('<dddd', entry.from, entry.to, entry.requests, entry.tokens)
    end
    redis.call('HSET', window.key, unpack(fields))
    redis.call('PEXPIRE', window.key, KEY_TTL_MS)
end

-- Returns a reservation's entry number, entry and tokens, while that entry is in the window.
local function find_reservation(window, reservation_key)
    local reservation = redis.call('GET', reservation_key)
    if not reservation then return end
    local number, reserved, from = struct.unpack('<ddd', reservation)
    if number < window.first or number >= window.first + window.count then return end
    local entry = read(window, number)
    -- Numbering restarts after the window was empty; an entry with another start time is a different one.
    if entry.from ~= from then return end
    return number, entry, reserved
end

-- Changes what one request counts in its entry.
local function change_entry(window, number, entry, requests, tokens)
    window.requests, window.tokens = window.requests + requests, window.tokens + tokens
    entry.requests, entry.tokens = entry.requests + requests, entry.tokens + tokens
    write(window, number, entry)
    window.oldest, window.newest = nil, nil
    drop_empty_ends(window)
end

-- Returns requests, tokens, and the times until the oldest and the newest entry expire.
local function status(window)
    if window.count == 0 then return window.requests, window.tokens, 0, 0 end
    return window.requests, window.tokens, window.oldest.to + WINDOW_US - window.now,
        window.newest.to + WINDOW_US - window.now
end
