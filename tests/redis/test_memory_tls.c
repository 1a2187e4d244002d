/* test_memory_tls.c - test_memory.c over TLS. */
#define OVER_TLS
#include "test_memory.c"
