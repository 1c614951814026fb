/*
 * longjmp.c
 *	  For tests under AddressSanitizer: tells it of every longjmp, as its own
 *	  wrapper would if its runtime were the first library of the process.
 *
 * Debian's postgres does not get through its start with that runtime
 * preloaded, so it comes in with the extension.  By then the server's longjmp
 * is bound, and the frames that an error leaves would stay poisoned.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <setjmp.h>
#include <stdlib.h>

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
