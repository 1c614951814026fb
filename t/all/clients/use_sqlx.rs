// needs: sqlx tokio
// crate: sqlx = { version = "*", default-features = false, features = ["postgres", "runtime-tokio"] }
// crate: tokio = { version = "*", features = ["macros", "rt"] }
// SQLx: ids are i64; of the type snowflake, i64 after a cast.
use sqlx::{Connection, PgConnection, Row};

fn check(ok: bool, what: &str) {
    println!("{}ok - {what}", if ok { "" } else { "not " });
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), sqlx::Error> {
    let mut db = PgConnection::connect("postgres://").await?;
    let rows = sqlx::query("INSERT INTO orders (item) SELECT unnest($1::text[]) RETURNING id, id::text")
        .bind(vec!["one", "two", "three"])
        .fetch_all(&mut db)
        .await?;
    let exact = rows
        .iter()
        .filter(|row| row.get::<i64, _>(0).to_string() == row.get::<String, _>(1))
        .count();
    check(exact == 3, "RETURNING");
    let id: i64 = rows[0].get(0);
    let item: String = sqlx::query_scalar("SELECT item FROM orders WHERE id = $1")
        .bind(id)
        .fetch_one(&mut db)
        .await?;
    check(item == "one", "an i64 finds its row");

    let row = sqlx::query("SELECT id::snowflake, id FROM orders WHERE id = $1")
        .bind(id)
        .fetch_one(&mut db)
        .await?;
    check(row.try_get::<i64, _>(0).is_err(), "the type snowflake is no i64");
    check(row.get::<i64, _>(1) == id, "id::bigint is");
    Ok(())
}
