SELECT bench_write_partition();
