/*
 * id_horizon.h
 *	  The horizon: an id below which every transaction has ended.
 */
#ifndef SNOWFLAKE_ID_HORIZON_H
#define SNOWFLAKE_ID_HORIZON_H

#include "postgres.h"

/* Does a slot hold the horizon back for this process's transaction? */
extern bool horizon_is_held;

extern void horizon_install_callback(void);
extern void horizon_begin(void);
extern void horizon_hold(void);
extern int64 horizon_read(void);
extern int64 horizon_of_hold(uint64 hold);

#endif							/* SNOWFLAKE_ID_HORIZON_H */
