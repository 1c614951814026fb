/*
 * sanitizers.c
 *	  Preloaded into servers under AddressSanitizer: sets its options, and tells
 *	  its runtime of every longjmp.
 *
 * If the runtime were the first library, its own longjmp would tell the runtime.
 * But Debian's postgres does not start with the runtime preloaded.  So the
 * extension loads the runtime, when the server has bound the C library's longjmp
 * already.  Without this library, the stack frames that an error leaves would
 * stay poisoned.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <setjmp.h>
#include <stdlib.h>

/*
 * The options are here and not in ASAN_OPTIONS and UBSAN_OPTIONS, because a
 * backend that loads the extension has written its title over its environment.
 */
const char *
__asan_default_options(void)
{
	return "verify_asan_link_order=0:detect_leaks=0:abort_on_error=1";
}

const char *
__ubsan_default_options(void)
{
	return "print_stacktrace=1:abort_on_error=1";
}

typedef void (*JumpFunction) (void *, int);

static void jump(const char *name, void *buffer, int value)
			__attribute__((noreturn));

static void
jump(const char *name, void *buffer, int value)
{
	void		(*forget_frames) (void);
	JumpFunction real;

	*(void **) &forget_frames = dlsym(RTLD_DEFAULT, "__asan_handle_no_return");
	if (forget_frames != NULL)
		forget_frames();

	*(void **) &real = dlsym(RTLD_NEXT, name);
	real(buffer, value);
	abort();
}

void
__longjmp_chk(void *buffer, int value)
{
	jump("__longjmp_chk", buffer, value);
}

void
siglongjmp(jmp_buf buffer, int value)
{
	jump("siglongjmp", buffer, value);
}
