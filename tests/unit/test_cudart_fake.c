/* The fake CUDA runtime itself: it is as asynchronous, and as strict, as the tests over it believe. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <string.h>

#include <cmocka.h>
#include <cuda_runtime_api.h>

#include "kernels/cuda/launch.h"
#include "runtime/base/mem.h"
#include "tests/fakes/cudart_fake.h"

enum { BYTES = 4096 };

static cudaStream_t first, second;
static cudaEvent_t event;
static uint8_t *device, *pinned;

static int set_up(void **state)
{
    (void)state;
    void *memory;
    cudart_fake_begin();
    if (cudaStreamCreateWithFlags(&first, cudaStreamNonBlocking) != cudaSuccess) return -1;
    if (cudaStreamCreateWithFlags(&second, cudaStreamNonBlocking) != cudaSuccess) return -1;
    if (cudaEventCreateWithFlags(&event, cudaEventDisableTiming) != cudaSuccess) return -1;
    if (cudaMalloc(&memory, BYTES) != cudaSuccess) return -1;
    device = memory;
    if (cudaHostAlloc(&memory, BYTES, cudaHostAllocDefault) != cudaSuccess) return -1;
    pinned = memory;
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    (void)cudart_fake_end();
    return 0;
}

static void a_stream_is_late_behind_its_gate_and_others_are_not(void **state)
{
    (void)state;
    memset(pinned, 1, BYTES);
    memset(device, 0, BYTES);
    cudart_fake_gate(first, true);
    assert_int_equal(cudaMemcpyAsync(device, pinned, 8, cudaMemcpyDefault, first), cudaSuccess);
    assert_int_equal(cudaEventRecord(event, first), cudaSuccess);
    assert_int_equal(cudaMemcpyAsync(device + 8, pinned, 8, cudaMemcpyDefault, second), cudaSuccess);
    assert_int_equal(cudaStreamSynchronize(second), cudaSuccess);
    assert_int_equal(cudaEventQuery(event), cudaErrorNotReady);
    assert_int_equal(device[0], 0);
    assert_int_equal(device[8], 1);
    memset(pinned, 2, BYTES); /* a copy reads when its turn comes */
    cudart_fake_gate(first, false);
    assert_int_equal(cudaStreamSynchronize(first), cudaSuccess);
    assert_int_equal(cudaEventQuery(event), cudaSuccess);
    assert_int_equal(device[0], 2);
}

static void a_wait_is_for_the_record_before_it_and_no_later_one(void **state)
{
    (void)state;
    assert_int_equal(cudaStreamWaitEvent(second, event, 0), cudaSuccess); /* never recorded: nothing to wait for */
    assert_int_equal(cudaStreamSynchronize(second), cudaSuccess);
    assert_int_equal(cudaEventRecord(event, first), cudaSuccess);
    assert_int_equal(cudaStreamSynchronize(first), cudaSuccess);
    assert_int_equal(cudaStreamWaitEvent(second, event, 0), cudaSuccess);
    cudart_fake_gate(first, true);
    assert_int_equal(cudaEventRecord(event, first), cudaSuccess);
    assert_int_equal(cudaStreamSynchronize(second), cudaSuccess);
    cudart_fake_gate(first, false);
}

struct copier {
    uint8_t source[64];
    atomic_bool is_back;
};

static void *copy_pageable(void *user)
{
    struct copier *copier = user;
    (void)cudaMemcpyAsync(device, copier->source, sizeof copier->source, cudaMemcpyDefault, first);
    atomic_store(&copier->is_back, true);
    return NULL;
}

static void a_copy_of_ordinary_memory_blocks_its_caller(void **state)
{
    (void)state;
    struct copier copier = { .source = { 9 } };
    pthread_t thread;
    cudart_fake_gate(first, true);
    assert_int_equal(pthread_create(&thread, NULL, copy_pageable, &copier), 0);
    for (uint32_t i = 0; i < 2000; i++) (void)sched_yield();
    assert_false(atomic_load(&copier.is_back));
    cudart_fake_gate(first, false);
    (void)pthread_join(thread, NULL);
    assert_int_equal(device[0], 9);
}

static void a_kernel_in_memory_that_is_not_the_devices_is_an_error_that_stays(void **state)
{
    (void)state;
    uint8_t ordinary[64] = { 0 };
    struct kvt_pages_run *runs = (struct kvt_pages_run *)(void *)pinned;
    runs[0] = (struct kvt_pages_run){ .source = device, .target = device + 64, .bytes = 64 };
    assert_int_equal(kvt_cuda_pages_move(runs, 1, 64, 1, first), KVT_OK);
    assert_int_equal(cudaStreamSynchronize(first), cudaSuccess);
    runs[0].target = ordinary;
    assert_int_equal(kvt_cuda_pages_move(runs, 1, 64, 1, first), KVT_OK); /* a launch does not know yet */
    assert_int_equal(cudaStreamSynchronize(first), cudaErrorIllegalAddress);
    assert_int_equal(cudaEventQuery(event), cudaErrorIllegalAddress);
    assert_int_equal(cudaGetLastError(), cudaErrorIllegalAddress);
    assert_int_equal(cudaGetLastError(), cudaSuccess);
    assert_int_equal(cudaMemcpyAsync(device, pinned, 8, cudaMemcpyDefault, second), cudaErrorIllegalAddress);
}

static void a_call_fails_when_it_was_told_to(void **state)
{
    (void)state;
    cudart_fake_fail("cudaEventRecord", 2, cudaErrorInvalidValue, false);
    assert_int_equal(cudaEventRecord(event, first), cudaSuccess);
    assert_int_equal(cudaEventRecord(event, first), cudaErrorInvalidValue);
    assert_int_equal(cudaEventRecord(event, first), cudaSuccess);
    assert_int_equal(cudart_fake_calls("cudaEventRecord"), 3);
    cudart_fake_fail("cudaEventRecord", 1, cudaErrorLaunchFailure, true);
    assert_int_equal(cudaEventRecord(event, first), cudaErrorLaunchFailure);
    assert_int_equal(cudaStreamSynchronize(second), cudaErrorLaunchFailure);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)
    const struct CMUnitTest tests[] = {
        TEST(a_stream_is_late_behind_its_gate_and_others_are_not),
        TEST(a_wait_is_for_the_record_before_it_and_no_later_one),
        TEST(a_copy_of_ordinary_memory_blocks_its_caller),
        TEST(a_kernel_in_memory_that_is_not_the_devices_is_an_error_that_stays),
        TEST(a_call_fails_when_it_was_told_to),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
