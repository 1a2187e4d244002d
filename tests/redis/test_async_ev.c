/* test_async_ev.c - test_async.c on libev. */
#define LOOP_LIBEV
#include "test_async.c"
