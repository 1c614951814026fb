/*
 * lease_state.h
 *	  The state of this server's lease.
 */
#ifndef SNOWFLAKE_LEASE_STATE_H
#define SNOWFLAKE_LEASE_STATE_H

#include "postgres.h"

#include "lease_rules.h"
#include "shmem.h"

extern LeaseState lease_state_read(SnowflakeLease *lease);
extern SnowflakeLease lease_state_in_force(void);
extern void lease_state_read_in_force(SnowflakeLease *lease);

extern LeaseState lease_state_inherit(const SnowflakeLease *logged,
									  SnowflakeLease *lease);
extern void lease_state_start(const SnowflakeLease *lease, LeaseState state);
extern void lease_state_grant(const SnowflakeLease *lease);
extern void lease_state_renew(const SnowflakeLease *lease);
extern bool lease_state_resume(void);
extern void lease_state_refuse(void);
extern void lease_state_end(void);
extern void lease_state_set_reason(const char *reason);

#endif							/* SNOWFLAKE_LEASE_STATE_H */
