/*
 * sql_text.c
 *	  Ids as text: digits of a base, the most significant first, no padding.
 *
 * The text of an id depends on no layout and no parameter, so that both
 * functions are immutable.  Errors: 22003 for a number that is negative or
 * past 63 bits, 22P02 for a text that is empty or has another character than
 * the base's digits, 22023 for an unknown base.
 */
#include "postgres.h"

#include "common/int.h"
#include "compat.h"
#include "fmgr.h"
#include "mb/pg_wchar.h"
#include "utils/builtins.h"

PG_FUNCTION_INFO_V1(snowflake_to_text);
PG_FUNCTION_INFO_V1(snowflake_from_text);

/* The number of digits of 63 bits in the smallest base. */
#define DIGITS_MAX 63

/* The digits of a base. */
typedef struct Base
{
	int			base;
	const char *digits;			/* in increasing order, from 0 */
	bool		ignores_case;
	const char *aliases;		/* pairs of an accepted letter and its digit */
} Base;

static const Base bases[] =
{
	{2, "01", false, ""},
	{16, "0123456789abcdef", true, ""},
	/* Crockford's digits lack U; I, L and O count as 1, 1 and 0 */
	{32, "0123456789ABCDEFGHJKMNPQRSTVWXYZ", true, "I1L1O0"},
	{36, "0123456789abcdefghijklmnopqrstuvwxyz", true, ""},
	/* Bitcoin's digits lack 0, O, I and l, which look alike */
	{58, "123456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz", false, ""},
	{62, "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz", false, ""}
};

static const Base *sql_find_base(int number);
static int	sql_digit_value(const Base *base, char c);
static bool sql_same_digit(const Base *base, char a, char b);
static void sql_refuse_character(const Base *base, const char *text,
								 int length, int at);

/* snowflake_to_text(id bigint, base integer) -> text */
Datum
snowflake_to_text(PG_FUNCTION_ARGS)
{
	int64		id = PG_GETARG_INT64(0);
	const Base *base = sql_find_base(PG_GETARG_INT32(1));
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
 *		The id of a text; leading zeros are allowed.
 */
Datum
snowflake_from_text(PG_FUNCTION_ARGS)
{
	text	   *argument = PG_GETARG_TEXT_PP(0);
	const Base *base = sql_find_base(PG_GETARG_INT32(1));
	const char *text = VARDATA_ANY(argument);
	int			length = VARSIZE_ANY_EXHDR(argument);
	bool		fits = true;
	int64		id = 0;

	if (length == 0)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_TEXT_REPRESENTATION),
				 errmsg("invalid snowflake id in base %d: \"\"", base->base),
				 errhint("Give one digit at least.")));

	/*
	 * Read to the end even if the value is too large, because an error about
	 * a wrong character tells the user more.
	 */
	for (int i = 0; i < length; i++)
	{
		int			value = sql_digit_value(base, text[i]);

		if (value < 0)
			sql_refuse_character(base, text, length, i);
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

static const Base *
sql_find_base(int number)
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

/* Returns the value of a digit; -1 if a character is no digit of the base. */
static int
sql_digit_value(const Base *base, char c)
{
	for (const char *alias = base->aliases; *alias != '\0'; alias += 2)
	{
		if (sql_same_digit(base, c, alias[0]))
			c = alias[1];
	}
	for (int value = 0; value < base->base; value++)
	{
		if (sql_same_digit(base, c, base->digits[value]))
			return value;
	}
	return -1;
}

/* Are two characters the same digit?  Ignores case only in ASCII. */
static bool
sql_same_digit(const Base *base, char a, char b)
{
	if (base->ignores_case)
		return pg_ascii_toupper((unsigned char) a) ==
			pg_ascii_toupper((unsigned char) b);
	return a == b;
}

/* The character begins at byte "at" of the text. */
static void
sql_refuse_character(const Base *base, const char *text, int length, int at)
{
	int			size = pg_mbcharcliplen(text + at, length - at, 1);

	ereport(ERROR,
			(errcode(ERRCODE_INVALID_TEXT_REPRESENTATION),
			 errmsg("invalid character \"%.*s\" at position %d of a snowflake id in base %d",
					size, text + at, pg_mbstrlen_with_len(text, at) + 1,
					base->base),
			 base->ignores_case ?
			 errhint("The digits of base %d are \"%s\", in upper or lower case.",
					 base->base, base->digits) :
			 errhint("The digits of base %d are \"%s\".",
					 base->base, base->digits)));
}
