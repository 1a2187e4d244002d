/* order.c - requests sorted by time within a window

   Servers write a line when a request ends, with the time when it began, so most lines are a little
   late or not at all. The window is a ring in order of time, into which a request is put from the
   end; what is later than RING_STEPS places goes into a heap beside it, so that a log in any order
   costs log n for each line. */
#include "replay.h"

#include <string.h>

#define RING_STEPS 32

bool earlier(const request *a, const request *b)
{
    if (a->time_ns != b->time_ns)
        return a->time_ns < b->time_ns;
    return a->file != b->file ? a->file < b->file : a->line < b->line;
}

static void ring_grow(window *w)
{
    size_t room = w->room ? w->room * 2 : 256, i;
    request *ring = (request *)resize(FOR_READING, NULL, 0, room, sizeof *ring);
    for (i = 0; i < w->count; i++)
        ring[i] = w->ring[(w->begin + i) & (w->room - 1)];
    resize(FOR_READING, w->ring, w->room, 0, sizeof *ring);
    w->ring = ring;
    w->room = room;
    w->begin = 0;
}

static void heap_push(window *w, request r)
{
    size_t at = w->heap_count++;
    if (at == w->heap_room) {
        size_t room = w->heap_room ? w->heap_room * 2 : 256;
        w->heap = (request *)resize(FOR_READING, w->heap, w->heap_room, room, sizeof r);
        w->heap_room = room;
    }
    for (; at && earlier(&r, &w->heap[(at - 1) / 2]); at = (at - 1) / 2)
        w->heap[at] = w->heap[(at - 1) / 2];
    w->heap[at] = r;
}

static request heap_pop(window *w)
{
    request top = w->heap[0], last = w->heap[--w->heap_count];
    size_t at = 0, child;
    while ((child = at * 2 + 1) < w->heap_count) {
        child += child + 1 < w->heap_count && earlier(&w->heap[child + 1], &w->heap[child]);
        if (!earlier(&w->heap[child], &last))
            break;
        w->heap[at] = w->heap[child];
        at = child;
    }
    w->heap[at] = last;
    return top;
}

void window_push(window *w, request r)
{
    size_t mask, at, steps;
    if (w->count == w->room)
        ring_grow(w);
    mask = w->room - 1;
    at = w->begin + w->count;
    for (steps = 0; steps < w->count && earlier(&r, &w->ring[(at - steps - 1) & mask]); steps++)
        if (steps == RING_STEPS) {
            heap_push(w, r);
            return;
        }
    w->count++;
    for (; steps; steps--, at--)
        w->ring[at & mask] = w->ring[(at - 1) & mask];
    w->ring[at & mask] = r;
}

bool window_first(const window *w, request *out)
{
    const request *ring = &w->ring[w->begin & (w->room - 1)];
    if (w->count + w->heap_count == 0)
        return false;
    *out = w->count == 0 || (w->heap_count && earlier(&w->heap[0], ring)) ? w->heap[0] : *ring;
    return true;
}

request window_pop(window *w)
{
    const request *ring = &w->ring[w->begin & (w->room - 1)];
    request out;
    if (w->count == 0 || (w->heap_count && earlier(&w->heap[0], ring)))
        return heap_pop(w);
    out = *ring;
    w->begin = (w->begin + 1) & (w->room - 1);
    w->count--;
    return out;
}
