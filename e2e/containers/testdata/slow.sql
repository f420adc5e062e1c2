SELECT pg_sleep(3);
