// needs: tokio-postgres tokio
// crate: tokio-postgres = "*"
// crate: tokio = { version = "*", features = ["macros", "rt"] }
// tokio-postgres: ids are i64; of the type snowflake, i64 after a cast.
use tokio_postgres::NoTls;

fn check(ok: bool, what: &str) {
    println!("{}ok - {what}", if ok { "" } else { "not " });
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), tokio_postgres::Error> {
    let variable = |name| std::env::var(name).unwrap();
    let (client, connection) = tokio_postgres::Config::new()
        .host(&variable("PGHOST"))
        .port(variable("PGPORT").parse().unwrap())
        .user(&variable("PGUSER"))
        .dbname(&variable("PGDATABASE"))
        .connect(NoTls)
        .await?;
    tokio::spawn(connection);
    let insert = "INSERT INTO orders (item) SELECT unnest($1::text[]) RETURNING id, id::text";
    let rows = client.query(insert, &[&vec!["one", "two", "three"]]).await?;
    let exact = rows
        .iter()
        .filter(|row| row.get::<_, i64>(0).to_string() == row.get::<_, String>(1))
        .count();
    check(exact == 3, "RETURNING");
    let id: i64 = rows[0].get(0);
    let found = client.query_one("SELECT item FROM orders WHERE id = $1", &[&id]).await?;
    check(found.get::<_, String>(0) == "one", "an i64 finds its row");

    let row = client.query_one("SELECT id::snowflake, id FROM orders WHERE id = $1", &[&id]).await?;
    check(row.try_get::<_, i64>(0).is_err(), "the type snowflake is no i64");
    check(row.get::<_, i64>(1) == id, "id::bigint is");
    let row = client.query_one("SELECT array_agg(id) FROM orders", &[]).await?;
    check(row.get::<_, Vec<i64>>(0).len() == 3, "an array of ids is a Vec<i64>");
    Ok(())
}
