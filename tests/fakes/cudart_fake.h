/*
 * cudart_fake: the functions of the CUDA runtime that kvtier calls, on ordinary memory, so that the CUDA device is
 * tested where there is none. Linked instead of libcudart.
 *
 * Streams are asynchronous and in order, each with a thread; two know nothing of each other but by events. A copy
 * reads its bytes, and a kernel its table, when its turn comes. A test gates streams, makes calls fail, and loses
 * the device. Like the real one: a copy from or to memory that is not pinned blocks its caller; a batch on a default
 * stream is refused; a per-thread stream is another one in each thread; cudaFree waits for the whole device; a
 * kernel that touches memory which is neither the device's nor pinned is an error that stays.
 *
 * Thread:  any. begin and end: one at a time, with nothing of the device open before and after.
 */
#ifndef KVT_TESTS_FAKES_CUDART_FAKE_H
#define KVT_TESTS_FAKES_CUDART_FAKE_H

#include <stdbool.h>
#include <stdint.h>

void cudart_fake_begin(void);

/* What has not been given back: 0 of each is clean. */
struct cudart_fake_left {
    uint32_t streams, events, device_allocations, host_allocations, registrations;
};
struct cudart_fake_left cudart_fake_left(void);
/* Ends the streams' threads, whatever waits in them; what was left before. */
struct cudart_fake_left cudart_fake_end(void);

/* No driver: no device is found. */
void cudart_fake_hide(bool is_hidden);

/* A gated stream does not start its next work. stream: a cudaStream_t; the default ones too. */
void cudart_fake_gate(void *stream, bool is_closed);

/* A kernel of the engine's. */
void cudart_fake_launch(void *stream, void (*run)(void *user), void *user);

/* Blocks until the stream has nothing left that it could do. */
void cudart_fake_settle(void *stream);

/*
 * The n-th call from now on (1: the next) of the function of this name returns the error (a cudaError_t); n 0: every
 * call does until it is set again. With is_sticky all calls do from then on, and queued work is dropped.
 */
void cudart_fake_fail(const char *function, uint32_t n, int error, bool is_sticky);
/* An error that stays, as a kernel of somebody's causes it. */
void cudart_fake_lose(int error);

/* Calls of the function so far. */
uint32_t cudart_fake_calls(const char *function);

#endif
