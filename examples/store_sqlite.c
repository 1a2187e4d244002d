/* store_sqlite.c - limits, windows and semaphores that all processes of a machine share in one
   SQLite file, and that survive a restart

   What it shows: ratelimit.h's compare-and-swap store over a database, which is two callbacks on
   a 24-byte record (load and swap), and windows and semaphores over the same two (cas_held.h), with
   the failures of a real database: locked, full, damaged. The upper half is what a program copies;
   the commands are in store_command.h.

       Package: libsqlite3-dev
       Build:   cc -std=c99 -O2 -I. examples/store_sqlite.c -o store_sqlite -lsqlite3

       ./store_sqlite limits.db take alice "5/h" && echo come in
       ./store_sqlite limits.db window mails "100/d" 3
       permit=$(./store_sqlite limits.db acquire render 4 30s) && render; \
           ./store_sqlite limits.db release render "$permit"
       ./store_sqlite limits.db load 4 1000 take bob "100/h"
       ./store_sqlite --help

   SQLITE
       WAL. Every decision is a transaction of its own. With a write-ahead log and synchronous =
       NORMAL it costs no fsync, and readers never wait for writers: a key that is used up is
       refused without a lock. The price: after a power cut (not after a crash of a process) the
       last takes may be forgotten. The rollback journal would make each take durable, at two fsyncs
       each; nothing else here depends on it. Both want one machine and a local disk.
       Locked. Whoever wants to write waits up to the timeout, then the store has failed and the
       limiter's policy decides. A writer that was killed leaves no lock behind.
       Lost swaps. While one process waits to write another may write the same key: then it loads
       and tries again. That takes microseconds here, so tries is large.
       Rows. A row whose time is over says no more than none. Each process deletes some at its first
       new key and at every 64th. They stay a minute longer than they must, for a clock that is set
       a little ahead and back. PRAGMA max_page_count bounds the file if keys come from outside.
       Clock. The wall clock: the file outlives a boot, which starts steady clocks anew.
       Threads. A store, that is a connection, for each thread; after fork the child opens its own.

   OTHER DATABASES  The same two callbacks elsewhere. A condition that does not hold is 0 (load
   again). What may or may not have been done, as after a timeout, is below 0 (failed). So let no
   client library send a swap again by itself: if the first one was done, the second is refused by
   it, and the take is charged twice. Comparing with old is as good as comparing versions, for equal
   records say the same. Add a minute to every expiry: clocks differ.

       SQL         the statements below; the number of rows changed is the answer. PostgreSQL has
                   ON CONFLICT DO NOTHING, too; MySQL has INSERT IGNORE.
       DynamoDB    load: GetItem with ConsistentRead true. swap: PutItem with ConditionExpression
                   "#record = :old", or "attribute_not_exists(#record)" if old is NULL; for ttl_ns 0
                   DeleteItem with the same. ConditionalCheckFailedException is 0. Expiry: a Number
                   attribute that UpdateTimeToLive names, the end in seconds since 1970. Items may
                   outlive it by days: no harm, the record says when its time is over.
       Tablestore  load: GetRow with MaxVersions 1. swap: UpdateRow, for ttl_ns 0 DeleteRow, with a
                   Condition: RowExistenceExpectation EXPECT_EXIST and the ColumnCondition
                   SingleColumnValueCondition record EQUAL old with PassIfMissing false and
                   LatestVersionsOnly true; EXPECT_NOT_EXIST alone if old is NULL.
                   OTSConditionCheckFail is 0. Expiry: only the table as a whole has a TimeToLive,
                   of 86400 s or more, counted from the last write: a day more than the longest
                   window or TTL in use, or -1.
       etcd        load: Range. swap: Txn with the compare VALUE EQUAL old (or MOD EQUAL the
                   mod_revision that load came with), CREATE EQUAL 0 if old is NULL; in success a
                   Put, for ttl_ns 0 a DeleteRange. succeeded false is 0. Expiry: LeaseGrant with a
                   TTL in seconds, whose ID goes into the Put. A lease for each write is dear: one
                   for all records that end in the same minute does, too.
*/
#define _POSIX_C_SOURCE 200809L
#define RATELIMIT_IMPLEMENTATION
#include "ratelimit.h"
#include "store_command.h"

#include <sqlite3.h>

#define KEEP_NS RATELIMIT_MINUTE

enum { FIND, INSERT, UPDATE, DELETE, SWEEP, STATEMENTS };

/* ?1 key, ?2 old record, ?3 new record, ?4 when its row may go, ns */
static const char *const statements[STATEMENTS] = {
    "SELECT record FROM ratelimit WHERE key = ?1",
    "INSERT INTO ratelimit(key, record, gone) VALUES(?1, ?3, ?4) ON CONFLICT DO NOTHING",
    "UPDATE ratelimit SET record = ?3, gone = ?4 WHERE key = ?1 AND record = ?2",
    "DELETE FROM ratelimit WHERE key = ?1 AND record = ?2",
    "DELETE FROM ratelimit WHERE key IN (SELECT key FROM ratelimit WHERE gone < ?1 LIMIT 256)"};

static const char schema[] =
    "PRAGMA journal_mode = WAL;"
    "PRAGMA synchronous = NORMAL;"
    "CREATE TABLE IF NOT EXISTS ratelimit(key BLOB PRIMARY KEY NOT NULL, record BLOB NOT NULL,"
    "    gone INTEGER NOT NULL) WITHOUT ROWID;"
    "CREATE INDEX IF NOT EXISTS ratelimit_gone ON ratelimit(gone);";

typedef struct store {
    const char *path;
    int timeout_ms;
    sqlite3 *db; /* opened by the first load */
    sqlite3_stmt *statement[STATEMENTS];
    uint32_t inserts;
    char error[256]; /* why the last call failed, "" if it did not */
} store;

static int fail(store *s, const char *doing)
{
    snprintf(s->error, sizeof s->error, "%s: %s (SQLite %d)", doing,
             s->db ? sqlite3_errmsg(s->db) : "no memory",
             s->db ? sqlite3_extended_errcode(s->db) : SQLITE_NOMEM);
    return -1;
}

static uint64_t wall_clock(void *self)
{
    struct timespec now;
    (void)self;
    clock_gettime(CLOCK_REALTIME, &now);
    return (uint64_t)now.tv_sec * RATELIMIT_SECOND + (uint64_t)now.tv_nsec;
}

static void store_close(void *self)
{
    store *s = self;
    int i;
    for (i = 0; i < STATEMENTS; i++) {
        sqlite3_finalize(s->statement[i]);
        s->statement[i] = NULL;
    }
    sqlite3_close(s->db);
    s->db = NULL;
}

/* SQLite does not always wait by itself when processes make a file's first tables at once. */
static int make_tables(store *s)
{
    uint64_t end = ratelimit_clock_ns() + (uint64_t)s->timeout_ms * RATELIMIT_MILLISECOND;
    int code = sqlite3_exec(s->db, schema, NULL, NULL, NULL);
    while (code == SQLITE_BUSY && ratelimit_clock_ns() < end) {
        sqlite3_sleep(5);
        code = sqlite3_exec(s->db, schema, NULL, NULL, NULL);
    }
    return code;
}

static bool store_open(store *s)
{
    int i, code;
    if (s->db)
        return true;
    code = sqlite3_open_v2(s->path, &s->db,
                           SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE | SQLITE_OPEN_NOMUTEX, NULL);
    if (code == SQLITE_OK)
        code = sqlite3_busy_timeout(s->db, s->timeout_ms);
    if (code == SQLITE_OK)
        code = make_tables(s);
    for (i = 0; i < STATEMENTS && code == SQLITE_OK; i++)
        code = sqlite3_prepare_v3(s->db, statements[i], -1, SQLITE_PREPARE_PERSISTENT,
                                  &s->statement[i], NULL);
    if (code == SQLITE_OK)
        return true;
    fail(s, "open");
    store_close(s);
    return false;
}

static int load(void *self, const void *key, size_t key_len, unsigned char *record)
{
    store *s = self;
    sqlite3_stmt *find;
    const void *found;
    int code, answer;
    if (!store_open(s))
        return -1;
    find = s->statement[FIND];
    code = sqlite3_bind_blob64(find, 1, key, key_len, SQLITE_STATIC);
    if (code == SQLITE_OK)
        code = sqlite3_step(find);
    s->error[0] = '\0';
    if (code == SQLITE_DONE)
        answer = 0;
    else if (code != SQLITE_ROW)
        answer = fail(s, "load");
    else if ((found = sqlite3_column_blob(find, 0)) != NULL &&
             sqlite3_column_bytes(find, 0) == RATELIMIT_RECORD_BYTES) {
        memcpy(record, found, RATELIMIT_RECORD_BYTES);
        answer = 1;
    } else {
        snprintf(s->error, sizeof s->error, "load: the row of this key holds no record");
        answer = -1;
    }
    sqlite3_reset(find); /* an open read would keep this connection at an old snapshot */
    return answer;
}

/* Rows whose time is over. Does not wait: who comes next can do it, too. */
static void sweep(store *s)
{
    sqlite3_stmt *q = s->statement[SWEEP];
    sqlite3_busy_timeout(s->db, 0);
    if (sqlite3_bind_int64(q, 1, (sqlite3_int64)wall_clock(NULL)) == SQLITE_OK)
        (void)sqlite3_step(q);
    sqlite3_reset(q);
    sqlite3_busy_timeout(s->db, s->timeout_ms);
}

static int swap(void *self, const void *key, size_t key_len, const unsigned char *old_or_null,
                const unsigned char *record, uint64_t ttl_ns)
{
    store *s = self;
    int kind = !old_or_null ? INSERT : ttl_ns ? UPDATE : DELETE, changed, code;
    sqlite3_stmt *q = s->statement[kind];
    uint64_t gone = wall_clock(NULL) + KEEP_NS + ttl_ns; /* below 2^63 until 2116 */
    code = sqlite3_bind_blob64(q, 1, key, key_len, SQLITE_STATIC);
    if (code == SQLITE_OK && kind != INSERT)
        code = sqlite3_bind_blob(q, 2, old_or_null, RATELIMIT_RECORD_BYTES, SQLITE_STATIC);
    if (code == SQLITE_OK && kind != DELETE)
        code = sqlite3_bind_blob(q, 3, record, RATELIMIT_RECORD_BYTES, SQLITE_STATIC);
    if (code == SQLITE_OK && kind != DELETE)
        code = sqlite3_bind_int64(q, 4, (sqlite3_int64)gone);
    if (code == SQLITE_OK)
        code = sqlite3_step(q);
    changed = code == SQLITE_DONE ? sqlite3_changes(s->db) : fail(s, "swap");
    sqlite3_reset(q);
    if (changed == 0)
        snprintf(s->error, sizeof s->error, "swap: lost to others too often");
    if (changed == 1 && kind == INSERT && s->inserts++ % 64 == 0)
        sweep(s);
    return changed;
}

int main(int argc, char **argv)
{
    static store s;
    static ratelimit_cas cas;
    static store_command command;
    (void)argc;
    if (!store_parse(&command, "store_sqlite", "FILE", argv))
        return STORE_WRONG;
    s.path = command.where;
    s.timeout_ms = command.timeout_ms;
    cas.self = &s;
    cas.load = load;
    cas.swap = swap;
    cas.clock = wall_clock;
    cas.tries = 1000;
    command.cas = &cas;
    command.error = s.error;
    command.close = store_close;
    return store_run(&command);
}
