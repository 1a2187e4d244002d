/* test_async_uv.c - test_async.c on libuv. */
#define LOOP_LIBUV
#include "test_async.c"
