/*
 * text.c
 *	  Ids as text: digits of a base, the most significant first, no padding.
 *
 * Depends on no layout and no parameter, so that both directions are
 * immutable.
 */
#include "postgres.h"

#include "common/int.h"
#include "compat.h"
#include "fmgr.h"
#include "mb/pg_wchar.h"
#include "utils/builtins.h"

PG_FUNCTION_INFO_V1(snowflake_to_text);
PG_FUNCTION_INFO_V1(snowflake_from_text);

/* as many as 63 bits have in the smallest base */
#define DIGITS_MAX 63

/* How the ids of a base are written, and what else is read. */
typedef struct Base
{
	int			base;
	const char *digits;			/* from 0 up */
	bool		ignores_case;
	const char *aliases;		/* pairs of a letter and the digit it means */
} Base;

static const Base bases[] =
{
	{2, "01", false, ""},
	{16, "0123456789abcdef", true, ""},
	/* Crockford's: without I, L, O and U; the first three can be misread */
	{32, "0123456789ABCDEFGHJKMNPQRSTVWXYZ", true, "I1L1O0"},
	{36, "0123456789abcdefghijklmnopqrstuvwxyz", true, ""},
	/* Bitcoin's: without 0, O, I and l */
	{58, "123456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz", false, ""},
	{62, "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz", false, ""}
};

/* Finds a base; ERROR 22023 for one that is not there. */
static const Base *
find_base(int number)
{
	for (int i = 0; i < lengthof(bases); i++)
	{
		if (bases[i].base == number)
			return &bases[i];
	}
	ereport(ERROR,
			(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
			 errmsg("invalid base of a snowflake id's text: %d", number),
			 errhint("Choose one of 2, 16, 32, 36, 58 and 62.")));
	return NULL;				/* keep compilers quiet */
}

/* The letter in both cases is one digit; ASCII only, whatever the locale. */
static bool
same_digit(const Base *base, char a, char b)
{
	if (base->ignores_case)
		return pg_ascii_toupper((unsigned char) a) ==
			pg_ascii_toupper((unsigned char) b);
	return a == b;
}

/* What a character counts, or -1 where it is no digit of the base. */
static int
digit_value(const Base *base, char c)
{
	for (const char *alias = base->aliases; *alias != '\0'; alias += 2)
	{
		if (same_digit(base, c, alias[0]))
			c = alias[1];
	}
	for (int value = 0; value < base->base; value++)
	{
		if (same_digit(base, c, base->digits[value]))
			return value;
	}
	return -1;
}

/* Refuses the character that begins at this byte of the text. */
static void
refuse_character(const Base *base, const char *text, int length, int at)
{
	int			size = pg_mbcharcliplen(text + at, length - at, 1);

	ereport(ERROR,
			(errcode(ERRCODE_INVALID_TEXT_REPRESENTATION),
			 errmsg("invalid character \"%.*s\" at position %d of a snowflake id in base %d",
					size, text + at, pg_mbstrlen_with_len(text, at) + 1,
					base->base),
			 errhint("The digits of base %d are \"%s\"%s.",
					 base->base, base->digits,
					 base->ignores_case ? ", in upper or lower case" : "")));
}

/*
 * snowflake_to_text(id bigint, base integer) -> text
 *		ERROR 22003 for a negative id, 22023 for a base that is not there.
 */
Datum
snowflake_to_text(PG_FUNCTION_ARGS)
{
	int64		id = PG_GETARG_INT64(0);
	const Base *base = find_base(PG_GETARG_INT32(1));
	char		digits[DIGITS_MAX];
	int			first = DIGITS_MAX;

	if (id < 0)
		ereport(ERROR,
				(errcode(ERRCODE_NUMERIC_VALUE_OUT_OF_RANGE),
				 errmsg(INT64_FORMAT " is not a snowflake id", id),
				 errhint("Ids are in the range 0 .. " INT64_FORMAT ".",
						 PG_INT64_MAX)));

	do
	{
		digits[--first] = base->digits[id % base->base];
		id /= base->base;
	} while (id > 0);

	PG_RETURN_TEXT_P(cstring_to_text_with_len(digits + first,
											  DIGITS_MAX - first));
}

/*
 * snowflake_from_text(text, base integer) -> bigint
 *		The reverse; leading zeros do not matter.  ERROR 22P02 for an empty
 *		text and for a character that is no digit, 22003 for a value past 63
 *		bits, 22023 for a base that is not there.
 */
Datum
snowflake_from_text(PG_FUNCTION_ARGS)
{
	text	   *argument = PG_GETARG_TEXT_PP(0);
	const Base *base = find_base(PG_GETARG_INT32(1));
	const char *text = VARDATA_ANY(argument);
	int			length = VARSIZE_ANY_EXHDR(argument);
	bool		fits = true;
	int64		id = 0;

	if (length == 0)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_TEXT_REPRESENTATION),
				 errmsg("invalid snowflake id in base %d: \"\"", base->base),
				 errhint("Give one digit at least.")));

	/* to the end, because a wrong character says more than the size */
	for (int i = 0; i < length; i++)
	{
		int			value = digit_value(base, text[i]);

		if (value < 0)
			refuse_character(base, text, length, i);
		fits = fits && !pg_mul_s64_overflow(id, base->base, &id) &&
			!pg_add_s64_overflow(id, value, &id);
	}

	if (!fits)
		ereport(ERROR,
				(errcode(ERRCODE_NUMERIC_VALUE_OUT_OF_RANGE),
				 errmsg("\"%s\" in base %d is out of range for a snowflake id",
						text_to_cstring(argument), base->base),
				 errhint("Ids are in the range 0 .. " INT64_FORMAT ".",
						 PG_INT64_MAX)));
	PG_RETURN_INT64(id);
}
