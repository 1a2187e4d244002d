/* commands.c - which commands there are, who may use them, and those that Redis' clients expect of
   a server besides. */
#include "server.h"

#include <string.h>

static char *password; /* NULL: none is needed */
static size_t password_len;

/* Compares in a time that does not tell how much of it is right. */
static bool is_password(slice s)
{
    size_t i;
    unsigned wrong = s.len != password_len;
    for (i = 0; i < s.len; i++)
        wrong |= (unsigned)(unsigned char)(s.at[i] ^ password[i % (password_len + 1)]);
    return !wrong;
}

/* user may be NULL. False: the answer is an error. */
static bool login(const call *c, const slice *user, slice word)
{
    if (!password) {
        put_error(c->out, "ERR AUTH: this server has no password");
        return false;
    }
    if ((user && !same_word(*user, "DEFAULT")) || !is_password(word)) {
        put_error(c->out, "WRONGPASS invalid username-password pair or user is disabled.");
        return false;
    }
    c->from->known = true;
    return true;
}

static void auth(const call *c)
{
    if (login(c, c->count == 3 ? &c->args[1] : NULL, c->args[c->count - 1]))
        put_ok(c->out);
}

static void put_pair(text *out, const char *name, const char *value)
{
    put_bulk(out, name, strlen(name));
    put_bulk(out, value, strlen(value));
}

/* HELLO [2 [AUTH user password] [SETNAME name]] */
static void hello(const call *c)
{
    uint64_t version = 2;
    size_t at = 2;
    if (c->count > 1 && (!whole_number(c->args[1], 9, &version) || version != 2)) {
        put_error(c->out, "NOPROTO this server speaks version 2 of the protocol");
        return;
    }
    while (at < c->count) {
        if (same_word(c->args[at], "AUTH") && at + 2 < c->count) {
            if (!login(c, &c->args[at + 1], c->args[at + 2]))
                return;
            at += 3;
        } else if (same_word(c->args[at], "SETNAME") && at + 1 < c->count) {
            at += 2;
        } else {
            put_error(c->out, "ERR syntax error in HELLO");
            return;
        }
    }
    if (!c->from->known) {
        put_error(c->out, "NOAUTH HELLO must be called with AUTH here");
        return;
    }
    put_array(c->out, 14);
    put_pair(c->out, "server", "ratelimit");
    put_pair(c->out, "version", RATELIMIT_VERSION_TEXT);
    put_bulk(c->out, "proto", 5);
    put_integer(c->out, 2);
    put_bulk(c->out, "id", 2);
    put_integer(c->out, (int64_t)c->from->id);
    put_pair(c->out, "mode", "standalone");
    put_pair(c->out, "role", "master");
    put_bulk(c->out, "modules", 7);
    put_array(c->out, 0);
}

static void ping(const call *c)
{
    if (c->count == 1)
        put_simple(c->out, "PONG");
    else
        put_bulk(c->out, c->args[1].at, c->args[1].len);
}

static void echo(const call *c)
{
    put_bulk(c->out, c->args[1].at, c->args[1].len);
}

static void select_db(const call *c)
{
    uint64_t number;
    if (whole_number(c->args[1], 0, &number))
        put_ok(c->out);
    else
        put_error(c->out, "ERR DB index is out of range: there is one, 0");
}

static void quit(const call *c)
{
    put_ok(c->out);
    c->from->ending = true;
}

/* What drivers send when they connect. Names of clients are taken and not kept. */
static void client_command(const call *c)
{
    slice word = c->args[1];
    if (same_word(word, "ID"))
        put_integer(c->out, (int64_t)c->from->id);
    else if (same_word(word, "SETNAME") || same_word(word, "SETINFO") ||
             same_word(word, "NO-EVICT") || same_word(word, "NO-TOUCH"))
        put_ok(c->out);
    else if (same_word(word, "GETNAME"))
        put_bulk(c->out, "", 0);
    else
        put_error(c->out, "ERR unknown subcommand of CLIENT");
}

static void info(const call *c)
{
    static text words; /* grows to what is needed, once */
    words.len = 0;
    words.broken = false;
    server_info(&words);
    if (words.broken)
        put_error(c->out, "ERR no memory");
    else
        put_bulk(c->out, words.at, words.len);
}

/* RESET alone is Redis': the connection as it was in the beginning; with a key it is ours. */
static void reset(const call *c)
{
    if (c->count == 1)
        put_simple(c->out, "RESET");
    else if (c->count == 2)
        put_error(c->out, "ERR RESET wants a key and a limit");
    else
        decide(c);
}

/* Here are no transactions. Who begins one all the same must not have its commands done one by
   one: until the end of it all are refused. */
static void multi(const call *c)
{
    c->from->refusing = true;
    put_error(c->out, "ERR there is no MULTI here: TAKEALL takes all or none");
}

static void exec(const call *c)
{
    put_error(c->out, c->from->refusing ? "EXECABORT nothing was done, for there is no MULTI here"
                                        : "ERR there is no MULTI here");
    c->from->refusing = false;
}

static void command_command(const call *c);

static const command commands[] = {
    {"THROTTLE", 5, 6, throttle, 0, 1, 0, false},
    {"CL.THROTTLE", 5, 6, throttle, 1, 1, 0, false},
    {"RULE", 3, 4, decide_by_rule, 0, 2, 0, false},
    {"TAKE", 3, 4, decide, RATELIMIT_TAKE, 1, 0, false},
    {"TAKEALL", 4, 1 + 3 * MAX_TOGETHER, take_all, 0, 1, 3, false},
    {"PEEK", 3, 4, decide, RATELIMIT_PEEK, 1, 0, false},
    {"RESERVE", 4, 5, decide, RATELIMIT_RESERVE, 1, 0, false},
    {"CHARGE", 3, 4, decide, RATELIMIT_CHARGE, 1, 0, false},
    {"REFUND", 3, 4, decide, RATELIMIT_REFUND, 1, 0, false},
    {"BLOCK", 4, 4, decide, RATELIMIT_BLOCK, 1, 0, false},
    {"RESET", 1, 3, reset, RATELIMIT_RESET, 1, 0, false},
    {"PING", 1, 2, ping, 0, 0, 0, false},
    {"ECHO", 2, 2, echo, 0, 0, 0, false},
    {"AUTH", 2, 3, auth, 0, 0, 0, true},
    {"HELLO", 1, 7, hello, 0, 0, 0, true},
    {"CLIENT", 2, 5, client_command, 0, 0, 0, false},
    {"COMMAND", 1, MAX_ARGS, command_command, 0, 0, 0, false},
    {"INFO", 1, MAX_ARGS, info, 0, 0, 0, false},
    {"SELECT", 2, 2, select_db, 0, 0, 0, false},
    {"QUIT", 1, 1, quit, 0, 0, 0, true},
    {"MULTI", 1, 1, multi, 0, 0, 0, false},
    {"EXEC", 1, 1, exec, 0, 0, 0, false},
    {"DISCARD", 1, 1, exec, 0, 0, 0, false},
};
enum { COMMANDS = sizeof commands / sizeof commands[0] };

/* COMMAND, COMMAND COUNT; COMMAND DOCS, which redis-cli sends, has nothing to say. */
static void command_command(const call *c)
{
    size_t i;
    if (c->count == 2 && same_word(c->args[1], "COUNT")) {
        put_integer(c->out, COMMANDS);
        return;
    }
    if (c->count > 1) {
        if (same_word(c->args[1], "DOCS"))
            put_array(c->out, 0);
        else
            put_error(c->out, "ERR unknown subcommand of COMMAND");
        return;
    }
    put_array(c->out, COMMANDS);
    for (i = 0; i < COMMANDS; i++) {
        const command *k = &commands[i];
        char name[16];
        size_t j, len = strlen(k->name);
        for (j = 0; j < len; j++)
            name[j] = (char)(k->name[j] >= 'A' ? k->name[j] + 32 : k->name[j]);
        put_array(c->out, 6);
        put_bulk(c->out, name, len);
        put_integer(c->out, k->least == k->most ? (int)k->least : -(int)k->least);
        put_array(c->out, 1);
        put_simple(c->out, k->key ? "write" : "fast");
        put_integer(c->out, k->key);
        put_integer(c->out, k->step ? -k->step : k->key);
        put_integer(c->out, k->step ? k->step : k->key != 0);
    }
}

static const command *find(slice name)
{
    size_t i;
    for (i = 0; i < COMMANDS; i++)
        if ((name.len && (name.at[0] | 32) == (commands[i].name[0] | 32)) &&
            same_word(name, commands[i].name))
            return &commands[i];
    return NULL;
}

/* True if it decides requests that may wait for others. */
static bool is_for_batch(const call *c)
{
    const command *k = c->of;
    return k && (k->run == throttle || k->run == decide) && c->count >= k->least &&
           c->count <= k->most && c->from->known && !c->from->refusing;
}

void run_command(call *c)
{
    slice name = c->args[0];
    c->of = find(name);
    if (!is_for_batch(c))
        decide_waiting(c->out);
    if (!c->of) {
        put_error(c->out, "ERR unknown command '%.*s'", (int)(name.len < 40 ? name.len : 40),
                  name.at);
        /* A browser that was told to send something here must not get further than this. */
        if (same_word(name, "POST") || same_word(name, "HOST:"))
            c->from->ending = true;
    } else if (c->count < c->of->least || c->count > c->of->most) {
        put_error(c->out, "ERR wrong number of arguments for '%s'", c->of->name);
    } else if (!c->from->known && !c->of->anybody) {
        put_error(c->out, "NOAUTH Authentication required.");
    } else if (c->from->refusing && c->of->run != exec) {
        put_error(c->out, "ERR not done, for it is behind MULTI");
    } else {
        c->of->run(c);
    }
}

bool needs_password(void)
{
    return password != NULL;
}

void open_commands(const options *o)
{
    const char *why;
    if (!o->password_file)
        return;
    password = read_file(o->password_file, 1024, &password_len, &why);
    if (!password)
        fail(2, "%s: %s", o->password_file, why);
    password[password_len] = '\n';
    password_len = (size_t)((char *)memchr(password, '\n', password_len + 1) - password);
    if (password_len && password[password_len - 1] == '\r')
        password_len--;
    if (!password_len)
        fail(2, "%s: the first line is empty", o->password_file);
}
