<?php
// PDO: ids are ints.  lastInsertId() without a name returns another table's id.
require 'check.php';

$pdo = connect();
$insert = $pdo->prepare("INSERT INTO orders (item) SELECT unnest(?::text[]) RETURNING id");
$insert->execute(['{one,two,three}']);
check($insert->fetchAll(PDO::FETCH_COLUMN), stored($pdo, 'orders'), 'RETURNING');

$pdo->exec('CREATE TABLE visits (id serial PRIMARY KEY)');
$pdo->exec('INSERT INTO visits SELECT FROM generate_series(1, 42)');
$pdo->exec("INSERT INTO orders (item) VALUES ('four')");
check($pdo->lastInsertId(), '42', "lastInsertId(): another table's id, and no error");
check((int) $pdo->query('SELECT snowflake_currval()')->fetchColumn(),
    stored($pdo, 'orders')[3], 'snowflake_currval()');

$row = $pdo->query("SELECT max(id)::snowflake, max(id), '{1,2}'::snowflake[], '{1,2}'::bigint[] FROM orders")->fetch(PDO::FETCH_NUM);
$id = stored($pdo, 'orders')[3];
check($row, [(string) $id, $id, '{1,2}', '{1,2}'], 'snowflake: a string; arrays as text, as those of bigint');
