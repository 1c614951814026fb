<?php
// What the programs of this directory in PHP share.

spl_autoload_register(function ($class) {
    // Debian has the libraries in the include path, without an autoloader.
    $file = str_replace('\\', '/', $class) . '.php';
    if (stream_resolve_include_path($file)) {
        require $file;
    }
});

function check($got, $wanted, string $what): void
{
    echo $got === $wanted ? 'ok' : 'not ok', " - $what\n";
    if ($got !== $wanted) {
        echo '# got ', json_encode($got), ', wanted ', json_encode($wanted), "\n";
    }
}

function connect(): PDO
{
    return new PDO(sprintf('pgsql:host=%s;port=%s;dbname=%s;user=%s',
        ...array_map('getenv', ['PGHOST', 'PGPORT', 'PGDATABASE', 'PGUSER'])));
}

// The stored ids, in their order.
function stored(PDO $pdo, string $table): array
{
    return array_map('intval', $pdo->query("SELECT id::text FROM $table ORDER BY id")
        ->fetchAll(PDO::FETCH_COLUMN));
}
