SELECT k FROM seen WHERE k = :k; -- expect 1, else permanent: unknown
UPDATE seen SET attempt = :rollbackd_attempt WHERE k = :k AND ready = 1; -- expect 1, else retry: not ready
