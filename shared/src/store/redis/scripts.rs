//! What the store does in one step. Each script touches the keys of one partition, which share one hash slot.

/// Changes documents with their partition's version, log and notification, all or nothing.
///
/// KEYS: meta, documents, sessions, log, expiry. ARGV: tenant, tag, channel, `PUBLISH` or `SPUBLISH`, log length, then for
/// each change: which hash (2 or 3), field, what is expected (`*`, `-` or a version), `p` or `d`, body, expiry (0: never),
/// address for the log.
pub(super) const WRITE: &str = r"
if not redis.call('HGET', KEYS[1], 'inc') then return {'unseeded'} end
local mark = {[2] = 'd:' .. ARGV[1], [3] = 's:' .. ARGV[1]}
for at = 6, #ARGV, 7 do
  local which, field, expect = tonumber(ARGV[at]), ARGV[at + 1], ARGV[at + 2]
  local begun = redis.call('HEXISTS', KEYS[1], mark[which])
  if begun == 1 and redis.call('HEXISTS', KEYS[which], '') == 0 then return {'lost'} end
  if expect ~= '*' then
    local found = redis.call('HGET', KEYS[which], field)
    local version = found and string.match(found, '^(%d+)\n')
    if expect == '-' and found then return {'conflict', field, version or '0'} end
    if expect ~= '-' and version ~= expect then return {'conflict', field, version or ''} end
  end
end
local version = redis.call('HINCRBY', KEYS[1], 'ver', 1)
redis.call('HSET', KEYS[1], 'tag', ARGV[2])
local text = string.format('%d', version)
for at = 6, #ARGV, 7 do
  local which, field = tonumber(ARGV[at]), ARGV[at + 1]
  local late = which .. '\0' .. ARGV[1] .. '\0' .. field
  if ARGV[at + 3] == 'p' then
    redis.call('HSET', KEYS[1], mark[which], 1)
    redis.call('HSET', KEYS[which], '', 1, field, text .. '\n' .. ARGV[at + 4])
    if ARGV[at + 5] == '0' then
      redis.call('ZREM', KEYS[5], late)
    else
      redis.call('ZADD', KEYS[5], ARGV[at + 5], late)
    end
  else
    redis.call('HDEL', KEYS[which], field)
    redis.call('ZREM', KEYS[5], late)
  end
  local id = text .. '-' .. string.format('%d', (at - 6) / 7)
  redis.call('XADD', KEYS[4], 'MAXLEN', '=', ARGV[5], id, 'a', ARGV[at + 6], 't', ARGV[2])
end
redis.call(ARGV[4], ARGV[3], text .. ' ' .. ARGV[2])
return {'ok', version}
";

/// Removes what has expired. KEYS: meta, expiry. ARGV: now, how many at most, the beginnings of the names of both hashes.
pub(super) const SWEEP: &str = r"
local late = redis.call('ZRANGEBYSCORE', KEYS[2], '-inf', ARGV[1], 'LIMIT', 0, ARGV[2])
for _, entry in ipairs(late) do
  local which, tenant, field = string.match(entry, '^(%d)%z(.-)%z(.*)$')
  if which then
    local hash = ARGV[tonumber(which) + 1] .. tenant
    redis.call('HDEL', hash, field)
    if redis.call('HLEN', hash) == 1 and redis.call('HEXISTS', hash, '') == 1 then
      redis.call('DEL', hash)
      redis.call('HDEL', KEYS[1], (which == '2' and 'd:' or 's:') .. tenant)
    end
  end
  redis.call('ZREM', KEYS[2], entry)
end
return #late
";

/// Begins a new life of a partition: what is there holds, and what is missing counts as never written.
///
/// KEYS: meta, log. ARGV: the new incarnation, `1` to begin even where there is one, the beginnings of the names of both
/// hashes. Returns whether it did.
pub(super) const SEED: &str = r"
if ARGV[2] ~= '1' and redis.call('HGET', KEYS[1], 'inc') then return 0 end
local meta = redis.call('HGETALL', KEYS[1])
for at = 1, #meta, 2 do
  local which, tenant = string.match(meta[at], '^([ds]):(.*)$')
  local hash = which and ARGV[which == 'd' and 3 or 4] .. tenant
  if hash and redis.call('HEXISTS', hash, '') == 0 then redis.call('HDEL', KEYS[1], meta[at]) end
end
redis.call('HSET', KEYS[1], 'inc', ARGV[1], 'tag', ARGV[1])
redis.call('HSETNX', KEYS[1], 'ver', 0)
redis.call('DEL', KEYS[2])
return 1
";

/// Renews or begins a worker's lease. KEYS: members, leases, version, grace. ARGV: incarnation, member, milliseconds,
/// channel, `PUBLISH` or `SPUBLISH`, `1` where it held a lease before. A lease that ended, or that the store has lost, is
/// not renewed: that worker begins anew, under another incarnation.
///
/// Where all leases ended together it was the store that stood still, and they are given their time once more. A worker
/// fences itself by its own clock, so that a lease which ends later harms nobody.
pub(super) const BEAT: &str = r"
local now = redis.call('TIME')
now = now[1] * 1000 + math.floor(now[2] / 1000)
local changed = false
local all = redis.call('ZCARD', KEYS[2])
if all > 0 and redis.call('ZCOUNT', KEYS[2], '-inf', now) == all
    and redis.call('SET', KEYS[4], 1, 'NX', 'PX', 4 * ARGV[3]) then
  for _, late in ipairs(redis.call('ZRANGE', KEYS[2], 0, -1)) do
    redis.call('ZADD', KEYS[2], now + ARGV[3], late)
  end
end
for _, late in ipairs(redis.call('ZRANGEBYSCORE', KEYS[2], '-inf', now)) do
  redis.call('ZREM', KEYS[2], late)
  redis.call('HDEL', KEYS[1], late)
  redis.call('HSET', KEYS[1], 'gone:' .. late, now)
  changed = true
end
for _, field in ipairs(redis.call('HKEYS', KEYS[1])) do
  if string.sub(field, 1, 5) == 'gone:' and now - redis.call('HGET', KEYS[1], field) > 86400000 then
    redis.call('HDEL', KEYS[1], field)
  end
end
local refused = ARGV[1] ~= '' and redis.call('HEXISTS', KEYS[1], 'gone:' .. ARGV[1]) == 1
if ARGV[6] == '1' and not refused and redis.call('HEXISTS', KEYS[1], ARGV[1]) == 0 then
  redis.call('HSET', KEYS[1], 'gone:' .. ARGV[1], now)
  refused = true
end
if ARGV[1] ~= '' and not refused then
  if redis.call('HGET', KEYS[1], ARGV[1]) ~= ARGV[2] then
    redis.call('HSET', KEYS[1], ARGV[1], ARGV[2])
    changed = true
  end
  redis.call('ZADD', KEYS[2], now + ARGV[3], ARGV[1])
end
if changed then
  redis.call(ARGV[5], ARGV[4], redis.call('INCR', KEYS[3]))
end
return refused and 0 or 1
";

/// Ends a lease. KEYS: members, leases, version. ARGV: incarnation, channel, `PUBLISH` or `SPUBLISH`.
pub(super) const LEAVE: &str = r"
if redis.call('ZREM', KEYS[2], ARGV[1]) == 1 then
  redis.call('HDEL', KEYS[1], ARGV[1])
  redis.call('HSET', KEYS[1], 'gone:' .. ARGV[1], redis.call('TIME')[1] * 1000)
  redis.call(ARGV[3], ARGV[2], redis.call('INCR', KEYS[3]))
end
return 1
";

/// Takes an exclusive connection, where it is nobody's, ours, or that of the holder who is known to be gone.
///
/// KEYS: record. ARGV: who, the holder that may be replaced, seconds that the record is kept. Returns `{epoch, holder,
/// trace}`: the holder is us where it was taken.
pub(super) const CLAIM: &str = r"
local holder = redis.call('HGET', KEYS[1], 'by')
if not holder or holder == '' or holder == ARGV[1] or holder == ARGV[2] then
  local epoch = redis.call('HGET', KEYS[1], 'epoch') or 0
  if holder ~= ARGV[1] then epoch = redis.call('HINCRBY', KEYS[1], 'epoch', 1) end
  redis.call('HSET', KEYS[1], 'by', ARGV[1])
  redis.call('EXPIRE', KEYS[1], ARGV[3])
  return {tonumber(epoch), ARGV[1], redis.call('HGET', KEYS[1], 'trace') or ''}
end
return {tonumber(redis.call('HGET', KEYS[1], 'epoch') or 0), holder, ''}
";

/// Changes a record that is ours. KEYS: record. ARGV: who, epoch, field, value. Returns whether it was.
pub(super) const NOTE: &str = r"
if redis.call('HGET', KEYS[1], 'by') ~= ARGV[1] or redis.call('HGET', KEYS[1], 'epoch') ~= ARGV[2] then return 0 end
redis.call('HSET', KEYS[1], ARGV[3], ARGV[4])
return 1
";

/// Gives a lock back, where it is still ours. KEYS: lock. ARGV: token.
pub(super) const UNLOCK: &str = r"
if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end
return 0
";

/// Adds to a counter of one window. KEYS: counter. ARGV: how much, seconds until it is forgotten.
pub(super) const COUNT: &str = r"
local now = redis.call('INCRBY', KEYS[1], ARGV[1])
if redis.call('TTL', KEYS[1]) < 0 then redis.call('EXPIRE', KEYS[1], ARGV[2]) end
return now
";
