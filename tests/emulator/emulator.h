// Runs CUDA kernels on the CPU, for tests. The threads of a block are fibers: they run until they meet a
// barrier or a warp collective and then give way, in an order that a seed decides. Blocks run one after
// another, in a seeded order as well. What hardware leaves undefined is an error here: barriers that not all
// threads reach, masks that name absent lanes, lanes that meet at different calls, arguments of wrong type.
//
// Under ThreadSanitizer every fiber is a context of its own, ordered with others by barriers alone, so that
// one serial run finds the races of all schedules. Under AddressSanitizer, memory is as exact as elsewhere.
#pragma once
#define EMULATED 1
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <random>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include <sys/mman.h>
#ifndef __x86_64__
#include <ucontext.h>
#endif

#if defined(__SANITIZE_THREAD__)
#define RACES 1
extern "C" {
void *__tsan_get_current_fiber(void);
void *__tsan_create_fiber(unsigned);
void __tsan_destroy_fiber(void *);
void __tsan_switch_to_fiber(void *, unsigned);
void __tsan_acquire(void *);
void __tsan_release(void *);
}
#define UNWATCHED __attribute__((no_sanitize("thread"), noinline))
#else
#define RACES 0
#define UNWATCHED __attribute__((noinline))
#endif

#if defined(__SANITIZE_ADDRESS__)
#define BOUNDS 1
extern "C" {
void __sanitizer_start_switch_fiber(void **, const void *, size_t);
void __sanitizer_finish_switch_fiber(void *, const void **, size_t *);
}
#else
#define BOUNDS 0
#endif

struct dim3 {
    unsigned x, y, z;
};

namespace emulator {

// -- switching stacks ------------------------------------------------------------------------------------

#ifdef __x86_64__
// Keep what the calling convention asks to keep, and change stacks: far cheaper than swapcontext, which
// asks the kernel for the signal mask every time.
extern "C" __attribute__((visibility("hidden"))) void emulator_switch(void **saved, void *target);
asm(".text\n.globl emulator_switch\n.hidden emulator_switch\n.type emulator_switch,@function\n"
    "emulator_switch:\n"
    "pushq %rbp\npushq %rbx\npushq %r12\npushq %r13\npushq %r14\npushq %r15\n"
    "movq %rsp, (%rdi)\nmovq %rsi, %rsp\n"
    "popq %r15\npopq %r14\npopq %r13\npopq %r12\npopq %rbx\npopq %rbp\nret\n"
    ".size emulator_switch,.-emulator_switch\n");
struct Context {
    void *top = nullptr;
};
UNWATCHED static void prepare(Context &context, char *stack, size_t size, void (*entry)())
{
    void **top = reinterpret_cast<void **>(reinterpret_cast<uintptr_t>(stack + size) & ~uintptr_t(15));
    top[-1] = nullptr;
    top[-2] = reinterpret_cast<void *>(entry);
    for (int k = 3; k <= 8; ++k)
        top[-k] = nullptr;
    context.top = top - 8;
}
UNWATCHED static void change(Context &from, Context &to)
{
    emulator_switch(&from.top, to.top);
}
#else
struct Context {
    ucontext_t held;
};
UNWATCHED static void prepare(Context &context, char *stack, size_t size, void (*entry)())
{
    getcontext(&context.held);
    context.held.uc_stack.ss_sp = stack;
    context.held.uc_stack.ss_size = size;
    context.held.uc_link = nullptr;
    makecontext(&context.held, entry, 0);
}
UNWATCHED static void change(Context &from, Context &to)
{
    swapcontext(&from.held, &to.held);
}
#endif

// -- one block -------------------------------------------------------------------------------------------

enum State { READY, AT_BARRIER, AT_WARP, FINISHED };

struct Fiber {
    Context context;
    char *stack = nullptr;
    void *races = nullptr, *fake_stack = nullptr;
    dim3 thread{};
    unsigned number = 0;
    State state = READY;
    int line = 0;
    unsigned mask = 0, phase = 0;
    unsigned char value[8];
};

struct Block {
    dim3 index{}, size{}, grid{};
    unsigned char *shared = nullptr;
    std::vector<Fiber> fibers;
    std::vector<unsigned char> exchanged;
    Context scheduler;
    void *races = nullptr, *fake_stack = nullptr;
    const void *stack = nullptr;
    size_t stack_size = 0;
    // Addresses that stand for "happens before": two for barriers in turn, or a late waker of one phase would
    // take over what early ones released in the next.
    char begun = 0, ended = 0, barrier[2] = {};
};

static Block block;
static Fiber *current = nullptr;
static std::string complaint;
static void (*kernel)(void **) = nullptr;
static void **arguments = nullptr;
constexpr size_t STACK = 64 << 10;

UNWATCHED static void complain(const std::string &text)
{
    if (complaint.empty())
        complaint = text;
}

// Byte copies that ThreadSanitizer does not see.
UNWATCHED static void copy(void *to, const void *from, size_t n)
{
    for (size_t i = 0; i < n; ++i)
        static_cast<volatile unsigned char *>(to)[i] = static_cast<const volatile unsigned char *>(from)[i];
}
UNWATCHED static void fill(void *to, int byte, size_t n)
{
    for (size_t i = 0; i < n; ++i)
        static_cast<volatile unsigned char *>(to)[i] = static_cast<unsigned char>(byte);
}

UNWATCHED static void yield_to_scheduler()
{
    Fiber *me = current;
#if RACES
    __tsan_switch_to_fiber(block.races, 1);
#endif
#if BOUNDS
    __sanitizer_start_switch_fiber(me->state == FINISHED ? nullptr : &me->fake_stack, block.stack, block.stack_size);
#endif
    change(me->context, block.scheduler);
#if BOUNDS
    __sanitizer_finish_switch_fiber(me->fake_stack, nullptr, nullptr);
#endif
}

UNWATCHED static void run_thread()
{
#if BOUNDS
    __sanitizer_finish_switch_fiber(nullptr, &block.stack, &block.stack_size);
#endif
#if RACES
    __tsan_acquire(&block.begun);
#endif
    kernel(arguments);
#if RACES
    __tsan_release(&block.ended);
#endif
    current->state = FINISHED;
    yield_to_scheduler();
}

UNWATCHED static void resume(Fiber &fiber)
{
    current = &fiber;
#if RACES
    __tsan_switch_to_fiber(fiber.races, 1);
#endif
#if BOUNDS
    __sanitizer_start_switch_fiber(&block.fake_stack, fiber.stack, STACK);
#endif
    change(block.scheduler, fiber.context);
#if BOUNDS
    __sanitizer_finish_switch_fiber(block.fake_stack, nullptr, nullptr);
#endif
    current = nullptr;
}

// -- what kernels call -----------------------------------------------------------------------------------

UNWATCHED static void wait_for_block(int line)
{
    const unsigned phase = current->phase++ & 1;
    (void)phase;
#if RACES
    __tsan_release(&block.barrier[phase]);
#endif
    current->state = AT_BARRIER;
    current->line = line;
    yield_to_scheduler();
#if RACES
    __tsan_acquire(&block.barrier[phase]);
#endif
}

// All lanes of the mask meet; each can then read what the others brought.
UNWATCHED static void meet(unsigned mask, int line, const void *value, size_t n)
{
    if (!(mask >> (current->number & 31) & 1u))
        complain("a lane calls a warp function with a mask that leaves it out, line " + std::to_string(line));
    fill(current->value, 0, 8);
    copy(current->value, value, n);
    current->state = AT_WARP;
    current->line = line;
    current->mask = mask;
    yield_to_scheduler();
}

template <typename T> UNWATCHED static T fetch(int line, unsigned mask, T value, int source)
{
    static_assert(sizeof(T) <= 8, "warp functions exchange at most eight bytes");
    meet(mask, line, &value, sizeof(T));
    T result;
    copy(&result, &block.exchanged[((current->number & ~31u) + source) * 8], sizeof(T));
    if (!(mask >> source & 1u))
        fill(&result, 0xff, sizeof(T));  // undefined on hardware
    return result;
}
template <typename T> UNWATCHED static T fetch_down(int line, unsigned mask, T value, unsigned by, int width = 32)
{
    const int lane = current->number & 31, source = lane + int(by);
    return fetch(line, mask, value, source / width == lane / width ? source : lane);
}
template <typename T> UNWATCHED static T fetch_xor(int line, unsigned mask, T value, int by, int width = 32)
{
    const int lane = current->number & 31, source = lane ^ by;
    return fetch(line, mask, value, source / width == lane / width ? source : lane);
}

template <typename T> static T add_atomically(T *place, T value)
{
    return __atomic_fetch_add(place, value, __ATOMIC_RELAXED);
}
template <typename T> static T lower_atomically(T *place, T value)
{
    T old = __atomic_load_n(place, __ATOMIC_RELAXED);
    while (value < old && !__atomic_compare_exchange_n(place, &old, value, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
    }
    return old;
}

// -- running a grid ----------------------------------------------------------------------------------------

UNWATCHED static void release_warp(unsigned first, unsigned lane, bool &moved)
{
    Fiber &asking = block.fibers[first + lane];
    const unsigned mask = asking.mask, n = block.fibers.size();
    for (unsigned k = 0; k < 32; ++k) {
        if (!(mask >> k & 1u))
            continue;
        if (first + k >= n || block.fibers[first + k].state == FINISHED)
            return complain("a mask names lane " + std::to_string(k) + ", which is absent or has returned, line " +
                            std::to_string(asking.line));
        const Fiber &other = block.fibers[first + k];
        if (other.state != AT_WARP)
            return;
        if (other.line != asking.line || other.mask != mask)
            return complain("lanes of one warp meet at different calls, lines " + std::to_string(asking.line) +
                            " and " + std::to_string(other.line));
    }
    for (unsigned k = 0; k < 32; ++k)
        if (mask >> k & 1u) {
            copy(&block.exchanged[(first + k) * 8], block.fibers[first + k].value, 8);
            block.fibers[first + k].state = READY;
        }
    moved = true;
}

UNWATCHED static void release_barrier(unsigned n_live)
{
    const unsigned n = block.fibers.size();
    unsigned waiting = 0;
    int line = -1;
    for (const Fiber &fiber : block.fibers) {
        if (fiber.state == AT_WARP)
            return complain("thread " + std::to_string(fiber.number) + " waits for its warp for ever, line " +
                            std::to_string(fiber.line));
        if (fiber.state != AT_BARRIER)
            continue;
        if (line >= 0 && line != fiber.line)
            return complain("threads wait at different barriers, lines " + std::to_string(line) + " and " +
                            std::to_string(fiber.line));
        line = fiber.line;
        ++waiting;
    }
    if (waiting != n_live || n_live != n)
        return complain("barrier at line " + std::to_string(line) + " after " + std::to_string(n - n_live) +
                        " threads returned");
    for (Fiber &fiber : block.fibers)
        fiber.state = READY;
}

// order 0: rising, 1: falling, 2: shuffled anew before every round.
UNWATCHED static bool run_block(std::mt19937 &random, int order)
{
    const unsigned n = block.fibers.size();
    std::vector<unsigned> turn(n);
    for (unsigned i = 0; i < n; ++i)
        turn[i] = order == 1 ? n - 1 - i : i;
    unsigned n_live = n;
    while (n_live && complaint.empty()) {
        if (order == 2)
            std::shuffle(turn.begin(), turn.end(), random);
        bool moved = false;
        for (unsigned i : turn)
            if (block.fibers[i].state == READY) {
                moved = true;
                resume(block.fibers[i]);
                n_live -= block.fibers[i].state == FINISHED;
            }
        for (unsigned first = 0; first < n; first += 32)
            for (unsigned lane = 0; lane < 32 && first + lane < n; ++lane)
                if (block.fibers[first + lane].state == AT_WARP && complaint.empty())
                    release_warp(first, lane, moved);
        if (!moved && n_live && complaint.empty())
            release_barrier(n_live);
    }
    return complaint.empty();
}

UNWATCHED static char *new_stack()
{
#if RACES
    void *stack = mmap(nullptr, STACK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    return static_cast<char *>(stack);
#else
    static std::vector<char *> kept;  // for the life of the process
    static size_t used = 0;
    if (current == nullptr && used >= kept.size())
        kept.push_back(static_cast<char *>(aligned_alloc(64, STACK)));
    char *stack = kept[used++];
    if (used == block.fibers.size())
        used = 0;
    return stack;
#endif
}

UNWATCHED static void set_up_block(const dim3 &index, size_t shared_bytes)
{
    block.index = index;
    void *memory = nullptr;
    if (posix_memalign(&memory, 128, shared_bytes ? shared_bytes : 1))
        abort();
    block.shared = static_cast<unsigned char *>(memory);
    fill(block.shared, 0xff, shared_bytes);  // nothing is zero by itself
    unsigned i = 0;
    for (Fiber &fiber : block.fibers) {
        fiber.number = i;
        fiber.state = READY;
        fiber.phase = 0;
        fiber.thread = dim3{i % block.size.x, i / block.size.x % block.size.y, i / block.size.x / block.size.y};
        ++i;
#if RACES
        fiber.stack = new_stack();
        fiber.races = __tsan_create_fiber(0);
#endif
        prepare(fiber.context, fiber.stack, STACK, run_thread);
    }
}

struct Limits {
    int order;
    unsigned seed;
    size_t most_shared;
    unsigned most_threads;
};

UNWATCHED static void launch(void (*entry)(void **), void **given, dim3 grid, dim3 size, size_t shared_bytes,
                             const Limits &limits)
{
    complaint.clear();
    const size_t n_threads = size_t(size.x) * size.y * size.z, n_blocks = size_t(grid.x) * grid.y * grid.z;
    if (!n_threads || !n_blocks)
        return complain("the grid or the block is empty");
    if (n_threads > limits.most_threads)
        return complain("a block of " + std::to_string(n_threads) + " threads exceeds the kernel's limit of " +
                        std::to_string(limits.most_threads));
    if (shared_bytes > limits.most_shared)
        return complain(std::to_string(shared_bytes) + " bytes of shared memory exceed " +
                        std::to_string(limits.most_shared));
    kernel = entry;
    arguments = given;
    block.size = size;
    block.grid = grid;
    std::mt19937 random(limits.seed);
    std::vector<size_t> turn(n_blocks);
    for (size_t i = 0; i < n_blocks; ++i)
        turn[i] = limits.order == 1 ? n_blocks - 1 - i : i;
    if (limits.order == 2)
        std::shuffle(turn.begin(), turn.end(), random);
    if (block.fibers.size() != n_threads)
        block.fibers.assign(n_threads, Fiber());
    block.exchanged.assign((n_threads + 31) / 32 * 32 * 8, 0xff);
#if RACES
    block.races = __tsan_get_current_fiber();
    __tsan_release(&block.begun);
#else
    for (Fiber &fiber : block.fibers)
        fiber.stack = new_stack();
#endif
    std::vector<unsigned char *> used;
#if RACES
    // Kept to the end: a context that took the place of an old one would count as the same thread, and races
    // between blocks would go unseen.
    std::vector<std::pair<void *, char *>> contexts;
#endif
    for (size_t i : turn) {
        set_up_block(dim3{unsigned(i % grid.x), unsigned(i / grid.x % grid.y), unsigned(i / grid.x / grid.y)},
                     shared_bytes);
        const bool fine = run_block(random, limits.order);
#if RACES
        for (Fiber &fiber : block.fibers)
            contexts.emplace_back(fiber.races, fiber.stack);
#endif
        used.push_back(block.shared);  // kept to the end, so that no two blocks share an address
        if (!fine)
            break;
    }
#if RACES
    __tsan_acquire(&block.ended);
    for (auto &context : contexts) {
        __tsan_destroy_fiber(context.first);
        munmap(context.second, STACK);
    }
#endif
    for (unsigned char *memory : used)
        free(memory);
}

// -- kernels by name, with the types of their arguments ------------------------------------------------------

struct Kernel {
    void (*entry)(void **);
    std::vector<std::string> types;  // NumPy's codes; pointers with a star
};

template <typename P> std::string code_of()
{
    using E = std::remove_cv_t<std::remove_pointer_t<P>>;
    const char kind = std::is_floating_point<E>::value ? 'f' : std::is_unsigned<E>::value ? 'u' : 'i';
    return std::string(std::is_pointer<P>::value ? "*" : "") + kind + std::to_string(sizeof(E));
}

static std::map<std::string, Kernel> &kernels()
{
    static std::map<std::string, Kernel> known;
    return known;
}

template <auto F> struct Registered;
template <typename... P, void (*F)(P...)> struct Registered<F> {
    template <size_t... I> static void call(void **given, std::index_sequence<I...>)
    {
        F(*static_cast<std::remove_const_t<P> *>(given[I])...);
    }
    static void entry(void **given)
    {
        call(given, std::index_sequence_for<P...>{});
    }
    explicit Registered(const char *name)
    {
        kernels()[name] = Kernel{entry, {code_of<P>()...}};
    }
};

}  // namespace emulator

#define __global__ static
#define __device__ static
#define __forceinline__ inline __attribute__((always_inline))
#define __noinline__ __attribute__((noinline))
#define __launch_bounds__(...)
#define SHARED_MEMORY(TYPE, NAME) TYPE *NAME = reinterpret_cast<TYPE *>(emulator::block.shared)
#define threadIdx (emulator::current->thread)
#define blockIdx (emulator::block.index)
#define blockDim (emulator::block.size)
#define gridDim (emulator::block.grid)
#define __syncthreads() emulator::wait_for_block(__LINE__)
#define __shfl_down_sync(...) emulator::fetch_down(__LINE__, __VA_ARGS__)
#define __shfl_xor_sync(...) emulator::fetch_xor(__LINE__, __VA_ARGS__)
// Only the overloads that kernels use and every architecture since sm_60 has.
static inline int atomicAdd(int *place, int value)
{
    return emulator::add_atomically(place, value);
}
static inline unsigned atomicAdd(unsigned *place, unsigned value)
{
    return emulator::add_atomically(place, value);
}
static inline unsigned long long atomicAdd(unsigned long long *place, unsigned long long value)
{
    return emulator::add_atomically(place, value);
}
static inline unsigned long long atomicMin(unsigned long long *place, unsigned long long value)
{
    return emulator::lower_atomically(place, value);
}
static inline double __longlong_as_double(long long bits)
{
    double value;
    std::memcpy(&value, &bits, sizeof value);
    return value;
}

// Returns "" or what is wrong; the text lives until the next call.
extern "C" __attribute__((visibility("default"))) const char *emulator_launch(
    const char *name, const unsigned *grid, const unsigned *size, size_t shared_bytes, void **given,
    const char **types, int n, int order, unsigned seed, size_t most_shared, unsigned most_threads)
{
    static std::string answer;
    const auto found = emulator::kernels().find(name);
    answer.clear();
    if (found == emulator::kernels().end()) {
        answer = std::string("there is no kernel ") + name;
        return answer.c_str();
    }
    const emulator::Kernel &known = found->second;
    if (size_t(n) != known.types.size())
        answer = std::string(name) + " takes " + std::to_string(known.types.size()) + " arguments, got " +
                 std::to_string(n);
    for (int i = 0; answer.empty() && i < n; ++i)
        if (known.types[i] != types[i])
            answer = std::string(name) + " argument " + std::to_string(i) + ": wants " + known.types[i] + ", got " +
                     types[i];
    if (!answer.empty())
        return answer.c_str();
    emulator::launch(known.entry, given, dim3{grid[0], grid[1], grid[2]}, dim3{size[0], size[1], size[2]},
                     shared_bytes, emulator::Limits{order, seed, most_shared, most_threads});
    if (!emulator::complaint.empty())
        answer = std::string(name) + ": " + emulator::complaint;
    return answer.c_str();
}
