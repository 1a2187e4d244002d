/* client.c - a C program that asks the server through hiredis: plainly, in a pipeline, over
   a unix socket. For clients.py: prints one line for each thing it found wrong, "ok" if none.

   Package: libhiredis-dev
   Build:   cc -std=c99 -O1 tests/server/client.c -o server_client -lhiredis

   server_client PORT UNIX-PATH */
#include <hiredis/hiredis.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int wrong;

static void expect(const char *what, int right)
{
    if (!right) {
        printf("%s\n", what);
        wrong++;
    }
}

/* An answer of integers and words; a word counts as -2. */
static int answers(const redisReply *reply, size_t count, const long long *wanted)
{
    size_t i;
    if (!reply || reply->type != REDIS_REPLY_ARRAY || (size_t)reply->elements != count)
        return 0;
    for (i = 0; i < count; i++) {
        const redisReply *e = reply->element[i];
        if ((e->type == REDIS_REPLY_INTEGER ? e->integer : -2) != wanted[i])
            return 0;
    }
    return 1;
}

static void plainly(redisContext *c)
{
    static const long long first[] = {1, 5, 4, 3600, 0}, cell[] = {0, 6, 5, -1, 3600};
    redisReply *reply = (redisReply *)redisCommand(c, "THROTTLE c:%s 5 1 3600", "plain");
    expect("THROTTLE", answers(reply, 5, first));
    freeReplyObject(reply);
    reply = (redisReply *)redisCommand(c, "CL.THROTTLE c:%b 5 1 3600 1", "\0\r\n", (size_t)3);
    expect("CL.THROTTLE with a key of any bytes", answers(reply, 5, cell));
    freeReplyObject(reply);
    reply = (redisReply *)redisCommand(c, "TAKE c:plain %s", "1/z");
    expect("an error is an error",
           reply && reply->type == REDIS_REPLY_ERROR && strncmp(reply->str, "ERR ", 4) == 0);
    freeReplyObject(reply);
}

static void in_a_pipeline(redisContext *c)
{
    int allowed = 0, i;
    for (i = 0; i < 1000; i++)
        redisAppendCommand(c, "TAKE c:pipeline %s", "1/d burst 600");
    for (i = 0; i < 1000; i++) {
        void *reply = NULL;
        if (redisGetReply(c, &reply) != REDIS_OK)
            break;
        if (((redisReply *)reply)->type == REDIS_REPLY_ARRAY)
            allowed += ((redisReply *)reply)->element[0]->integer == 1;
        freeReplyObject(reply);
    }
    expect("1000 in a pipeline are all answered", i == 1000);
    expect("of them 600 are allowed", allowed == 600);
}

int main(int argc, char **argv)
{
    struct timeval patience = {20, 0};
    redisContext *c;
    redisReply *reply;
    if (argc != 3)
        return 2;
    c = redisConnectWithTimeout("127.0.0.1", atoi(argv[1]), patience);
    if (!c || c->err)
        return 2;
    redisSetTimeout(c, patience);
    plainly(c);
    in_a_pipeline(c);
    redisFree(c);
    c = redisConnectUnixWithTimeout(argv[2], patience);
    if (!c || c->err)
        return 2;
    redisSetTimeout(c, patience);
    reply = (redisReply *)redisCommand(c, "THROTTLE c:plain 5 1 3600");
    expect("a unix socket leads to the same table",
           reply && reply->type == REDIS_REPLY_ARRAY && reply->element[2]->integer == 3);
    freeReplyObject(reply);
    redisFree(c);
    if (!wrong)
        puts("ok");
    return wrong != 0;
}
