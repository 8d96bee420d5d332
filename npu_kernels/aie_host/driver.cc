// Calls a kernel on copies of its buffers, each with canaries around it (or, under a sanitizer, each
// an allocation of its own, to the byte), and copies back what it wrote.
#include "aie_api/aie.hpp"

#include <cstdlib>

#if defined(__SSE__)
#include <xmmintrin.h>
#endif

#if defined(__SANITIZE_ADDRESS__)
#include <dlfcn.h>
#include <sanitizer/asan_interface.h>
#endif

namespace {

constexpr std::uint64_t arguments_max = 16, line = 128;
constexpr unsigned char canary = 0xC5;

struct buffers {
    unsigned char *memory[arguments_max] = {};
    ~buffers() {
        for (unsigned char *each : memory)
            std::free(each);
    }
};

// Denormals are zero on the cores.
struct no_denormals {
#if defined(__SSE__)
    unsigned before = _mm_getcsr();
    no_denormals() { _mm_setcsr(before | 0x8040); }
    ~no_denormals() { _mm_setcsr(before); }
#endif
};

// Buffers start at odd multiples of 64 bytes, as the array may place them, so that who wants 128
// is found out. Canaries stand before and behind; a sanitizer has its own.
#if defined(__SANITIZE_ADDRESS__)
constexpr std::uint64_t before = 64, behind = 0;
#else
constexpr std::uint64_t before = line + 64, behind = line;
#endif

unsigned char *guarded(std::uint64_t bytes) {
    void *memory = nullptr;
    if (posix_memalign(&memory, line, before + bytes + behind))
        std::abort();
    std::memset(memory, canary, before + bytes + behind);
#if defined(__SANITIZE_ADDRESS__)
    __asan_poison_memory_region(memory, before);
#endif
    return static_cast<unsigned char *>(memory);
}

void check_canaries(const unsigned char *memory, std::uint64_t bytes, unsigned argument) {
    for (std::uint64_t n = 0; behind && n < before + behind; ++n) {
        const std::uint64_t i = n < before ? n : n + bytes;
        if (memory[i] != canary)
            aie_host::trap("argument %u: wrote at byte %lld of %llu", argument,
                           static_cast<long long>(i) - static_cast<long long>(before),
                           static_cast<unsigned long long>(bytes));
    }
}

using word = std::int64_t;
using kernel = void (*)(word, word, word, word, word, word, word, word, word, word, word, word,
                        word, word, word, word);

} // namespace

// sizes[i] is the bytes behind words[i], or 0 where that is an integer. 0, or 1 and why in message.
extern "C" int aie_host_call(void *function, int count, word *words, const std::uint64_t *sizes,
                             char *message) {
    buffers held;
    word values[arguments_max] = {};
    for (int i = 0; i < count; ++i) {
        values[i] = words[i];
        if (sizes[i]) {
            held.memory[i] = guarded(sizes[i]);
            std::memcpy(held.memory[i] + before, reinterpret_cast<void *>(words[i]), sizes[i]);
            values[i] = reinterpret_cast<word>(held.memory[i] + before);
        }
    }
    try {
        const no_denormals mode;
        aie_host::control = {};
        const word *v = values;
        reinterpret_cast<kernel>(function)(v[0], v[1], v[2], v[3], v[4], v[5], v[6], v[7], v[8],
                                           v[9], v[10], v[11], v[12], v[13], v[14], v[15]);
        for (int i = 0; i < count; ++i)
            if (sizes[i])
                check_canaries(held.memory[i], sizes[i], i);
    } catch (const aie_host::fault &found) {
        std::memcpy(message, found.text, sizeof found.text);
        return 1;
    }
    for (int i = 0; i < count; ++i)
        if (sizes[i])
            std::memcpy(reinterpret_cast<void *>(words[i]), held.memory[i] + before, sizes[i]);
    return 0;
}

#if defined(__SANITIZE_ADDRESS__)
// A program of its own, for a sanitizer must be there from the start: the call on standard input
// (count, sizes, then integers and bytes), the buffers as they are afterwards on standard output.
static void read_all(void *to, std::size_t bytes) {
    if (std::fread(to, 1, bytes, stdin) != bytes)
        std::exit(3);
}

int main(int, char **arguments) {
    std::uint64_t count, sizes[arguments_max];
    word words[arguments_max];
    buffers held;
    read_all(&count, sizeof count);
    read_all(sizes, count * sizeof *sizes);
    for (std::uint64_t i = 0; i < count; ++i) {
        if (!sizes[i])
            read_all(&words[i], sizeof *words);
        else {
            held.memory[i] = static_cast<unsigned char *>(std::malloc(sizes[i]));
            read_all(held.memory[i], sizes[i]);
            words[i] = reinterpret_cast<word>(held.memory[i]);
        }
    }
    char message[sizeof(aie_host::fault)];
    void *function = dlsym(RTLD_DEFAULT, arguments[1]);
    if (!function)
        return 4;
    if (aie_host_call(function, int(count), words, sizes, message)) {
        std::fputs(message, stderr);
        return 2;
    }
    for (std::uint64_t i = 0; i < count; ++i)
        if (sizes[i])
            std::fwrite(held.memory[i], 1, sizes[i], stdout);
    return 0;
}
#endif

#include AIE_HOST_KERNEL
