#!/bin/sh
# One query for check_postgres: 1 is a warning and 2 critical, for the default
# clock_tolerance of 5 s and leases of 100 s.  Further options, such as --host,
# are passed on.
check_postgres --action=custom_query --valtype=integer --warning=1 --critical=2 --query="SELECT CASE WHEN in_recovery THEN 0 WHEN worker_id IS NULL OR lease_expires_at < clock_timestamp() + '25 s' OR lead > '2.5 s' OR high_water_mark > clock_timestamp() + '10 s' THEN 2 WHEN last_instant < now() + '5 years' THEN 1 ELSE 0 END AS result FROM snowflake_node(), snowflake_stat()" "$@"
