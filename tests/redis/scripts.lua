-- scripts.lua - runs the scripts of ratelimit_redis.h in Lua 5.4, with a Redis of a few lines: what
-- they send must be texts without fractions, and what they reply whole numbers, of Lua's integers.
local file = assert(io.open(arg[1], 'rb'))
local texts = {}
for text in file:read('a'):gmatch('([^\0]+)\0') do
  texts[#texts + 1] = text
end
assert(#texts == 13, 'how many scripts are there?')

local strings, sets, faults, micros = {}, {}, 0, 1700000000123457
local function fault(what)
  print(what)
  faults = faults + 1
end

struct = {}
local function form(f) -- as string.pack has it: c5 is the same, I3 is I3, d is d
  return f
end
struct.pack = function(f, ...)
  return string.pack(form(f), ...)
end
struct.unpack = function(f, s)
  local last = {string.unpack(form(f), s)}
  last[#last] = nil
  return table.unpack(last)
end

local function number(text, what)
  if math.type(text) == 'float' or tostring(text):find('[.e]') then
    fault(what .. ' is sent ' .. tostring(text))
  end
  return tonumber(text)
end

local function sorted(key)
  local all = {}
  for id, score in pairs(sets[key] or {}) do
    all[#all + 1] = {id, score}
  end
  table.sort(all, function(a, b) return a[2] < b[2] end)
  return all
end

local commands = {
  TIME = function() return {tostring(micros // 1000000), tostring(micros % 1000000)} end,
  GET = function(key) return strings[key] or false end,
  SET = function(key, value, a, b, c)
    if a == 'NX' and strings[key] then return false end
    number(a == 'NX' and c or b, 'SET ' .. a)
    strings[key] = tostring(value)
    return {ok = 'OK'}
  end,
  DEL = function(key) strings[key] = nil return 1 end,
  PTTL = function(key) return strings[key] and 500 or -2 end,
  PEXPIRE = function(key, ms) number(ms, 'PEXPIRE') return 1 end,
  INCRBY = function(key, n)
    strings[key] = string.format('%d', number(strings[key], 'a counter') + number(n, 'INCRBY'))
    return tonumber(strings[key])
  end,
  DECR = function(key)
    strings[key] = string.format('%d', number(strings[key], 'a counter') - 1)
    return tonumber(strings[key])
  end,
  ZADD = function(key, a, b, c)
    if a == 'XX' then a, b = b, c end
    sets[key] = sets[key] or {}
    sets[key][b] = number(a, 'ZADD')
    return 1
  end,
  ZCARD = function(key) return #sorted(key) end,
  ZSCORE = function(key, id) return sets[key] and sets[key][id] and tostring(sets[key][id]) or false end,
  ZREM = function(key, id)
    local was = sets[key] and sets[key][id]
    if was then sets[key][id] = nil end
    return was and 1 or 0
  end,
  ZRANGE = function(key, first)
    local all = sorted(key)
    local one = all[tonumber(first) == 0 and 1 or #all]
    return one and {one[1], string.format('%d', one[2])} or {}
  end,
  ZREMRANGEBYSCORE = function(key, _, most)
    number(most, 'ZREMRANGEBYSCORE')
    for id, score in pairs(sets[key] or {}) do
      if score <= tonumber(most) then sets[key][id] = nil end
    end
    return 0
  end,
}
redis = {call = function(name, ...) return commands[name](...) end}
redis.pcall = redis.call

local function whole(value, of)
  if type(value) == 'table' then
    for _, each in ipairs(value) do whole(each, of) end
    if value.err then fault(of .. ' fails: ' .. value.err) end
  elseif type(value) == 'number' and math.type(value) ~= 'integer' then
    fault(of .. ' replies the float ' .. value)
  end
  return value
end

local names = {'take', 'many', 'ask', 'give', 'swap', 'count', 'slide', 'plain', 'permit', 'return',
               'extend', 'lock', 'owned'}
local function run(name, keys, ...)
  KEYS, ARGV = keys, {...}
  for i, each in ipairs(ARGV) do ARGV[i] = tostring(each) end
  for i, each in ipairs(names) do
    if each == name then return whole(assert(load(texts[i], name))(), name) end
  end
end

local tag, owed, block = 'TAG00', 'TAG01', 'BLOCK'
local function terms(most, cost, window)
  return string.pack('<ddc5c5d', most, cost, tag, owed, 19000000000) ..
         (window and string.pack('<d', window) or '')
end
local function wide(most, cost, parts, period)
  local of = parts > 1 and string.pack('<I3', parts - 1) or '\0\0\0'
  return string.pack('<ddc8c8ddI3I3I3I3d', most, cost, tag .. of, owed .. of,
                     period > 0 and 10000000000 or 19000000000, 9000000000,
                     3 % parts, 4 % parts, 5 % parts, parts - 1, period)
end
for _ = 1, 3 do
  micros = micros + 1234567
  run('take', {'a'}, terms(5000000000, 3333333333))
  run('take', {'a'}, terms(9000000000, 8333333333, 9000000000), 1, 90000, micros, 7)
  run('take', {'a'}, terms(-1, 1))
  run('many', {'a', 'b'}, '', '', '', 0, terms(5000000000, 1500000001, 9000000000))
  run('ask', {'c'}, '', '', '', 0, terms(5000000000, 1500000001, 9000000000))
  run('ask', {'d'}, '', '', '', 0, wide(5000000000, 1428571428, 7, 0) .. '\0')
  run('ask', {'e'}, '', '', '', 0, wide(500000000, 1500000001, 1, 60000000))
  for key, of in pairs({c = {1, 0}, d = {7, 0}, e = {1, 60000000}}) do
    local like = wide(0, 0, of[1], of[2])
    run('give', {key}, '', '', '', 0, like, block, 'up_to', 3000000001, 0, 1000000001, 0)
    run('give', {key}, '', '', '', 0, like, block, 'back', 9007199254740992, 0, 1000000001, 0)
  end
  run('give', {'f'}, '', '', '', 0, wide(0, 0, 1, 0), block, 'block', 60000000001, 0, 8000000000, 0,
      8000000000)
  run('swap', {'a'}, '')
  run('swap', {'a'}, '', strings.a or '', 'new', 77)
  strings.a = nil
  run('count', {'w'}, 5, 1, 60000)
  run('slide', {'s'}, 5, 1, 60007, 5 * 60007)
  run('plain', {'p'}, 5, 60000)
  run('plain', {'q'}, 5, 60000)
  run('plain', {'q'}, 0)
  run('permit', {'z'}, 2, 60000000, 'id' .. micros)
  run('permit', {'z'}, 1, 60000000, 'other')
  run('extend', {'z'}, 60000000, 'id' .. micros)
  run('return', {'z'}, 'nobody')
  run('lock', {'l', 'n'}, 60000, 7776000000, 'me')
  run('lock', {'l', 'n'}, 60000, 7776000000, 'you')
  run('owned', {'l'}, 60000, 'me')
  run('owned', {'l'}, 0, 'me')
end
os.exit(faults == 0 and 0 or 1)
