/* Preloaded into a program, this hides every instruction set above AVX2 from it, for a library that has no switch for that.
 *
 * Linux lets a thread request that its CPUID instruction faults (x86-64, if the processor supports it), and its children inherit
 * that. The fault handler returns what the processor reports, minus the bits of AVX-VNNI, AVX-512 and AMX.
 */
#define _GNU_SOURCE
#include <cpuid.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <ucontext.h>
#include <unistd.h>

#define SET_CPUID 0x1012 /* ARCH_SET_CPUID of asm/prctl.h */

static long set_cpuid(int works) { return syscall(SYS_arch_prctl, SET_CPUID, works); }

static unsigned bits(const int *numbers, int count)
{
    unsigned mask = 0;
    for (int i = 0; i < count; i++)
        mask |= 1u << numbers[i];
    return mask;
}
#define BITS(...) bits((const int[]){__VA_ARGS__}, sizeof((int[]){__VA_ARGS__}) / sizeof(int))

static void answer(int signal_number, siginfo_t *info, void *context)
{
    (void)info;
    greg_t *registers = ((ucontext_t *)context)->uc_mcontext.gregs;
    const unsigned char *instruction = (const unsigned char *)registers[REG_RIP];
    if (instruction[0] != 0x0f || instruction[1] != 0xa2) { /* not CPUID: a fault of the program's own, which it shall have */
        signal(signal_number, SIG_DFL);
        return;
    }
    unsigned leaf = registers[REG_RAX], subleaf = registers[REG_RCX], eax, ebx, ecx, edx;
    set_cpuid(1);
    __cpuid_count(leaf, subleaf, eax, ebx, ecx, edx);
    set_cpuid(0);
    if (leaf == 7 && subleaf == 0) {
        ebx &= ~BITS(16, 17, 21, 26, 27, 28, 30, 31); /* AVX-512: F DQ IFMA PF ER CD BW VL */
        ecx &= ~BITS(1, 6, 11, 12, 14);               /* AVX-512: VBMI VBMI2 VNNI BITALG VPOPCNTDQ */
        edx &= ~BITS(2, 3, 8, 22, 23, 24, 25);        /* AVX-512: 4VNNIW 4FMAPS VP2INTERSECT FP16; AMX: BF16 TILE INT8 */
    } else if (leaf == 7 && subleaf == 1) {
        eax &= ~BITS(4, 5, 21, 23); /* AVX-VNNI, AVX512-BF16, AMX-FP16, AVX-IFMA */
        edx &= ~BITS(4, 5, 8, 10, 19); /* AVX-VNNI-INT8, AVX-NE-CONVERT, AMX-COMPLEX, AVX-VNNI-INT16, AVX10 */
    }
    registers[REG_RAX] = eax;
    registers[REG_RBX] = ebx;
    registers[REG_RCX] = ecx;
    registers[REG_RDX] = edx;
    registers[REG_RIP] += 2;
}

__attribute__((constructor)) static void hide(void)
{
    struct sigaction action = {.sa_sigaction = answer, .sa_flags = SA_SIGINFO | SA_NODEFER};
    if (sigaction(SIGSEGV, &action, NULL) != 0 || set_cpuid(0) != 0) {
        fprintf(stderr, "avx2_only: this machine cannot hide instruction sets from a program (no CPUID faulting)\n");
        exit(1);
    }
}
