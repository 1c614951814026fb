/*
 * mark_layout.h
 *	  The layout and the epoch of the data's ids.
 */
#ifndef SNOWFLAKE_MARK_LAYOUT_H
#define SNOWFLAKE_MARK_LAYOUT_H

#include "postgres.h"

#include "layout.h"
#include "mark_page.h"

extern bool mark_layout_begin(void);
extern const SnowflakeLayout *mark_layout_to_announce(void);
extern const SnowflakeLayout *mark_layout(void);
extern bool mark_layout_is_final(void);
extern void mark_layout_require(const MarkContents *contents);
extern void mark_layout_change(void);

#endif							/* SNOWFLAKE_MARK_LAYOUT_H */
