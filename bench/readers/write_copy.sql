COPY outbox (event) FROM ':work/rows.copy';
