// needs: lib/pq
// lib/pq: ids are int64, those of the type snowflake, too.
package main

import (
	"database/sql"
	"fmt"

	"github.com/lib/pq"
)

func check(ok bool, what string) {
	if ok {
		fmt.Println("ok -", what)
	} else {
		fmt.Println("not ok -", what)
	}
}

func must(err error) {
	if err != nil {
		panic(err)
	}
}

func main() {
	db, err := sql.Open("postgres", "")
	must(err)
	rows, err := db.Query(
		"INSERT INTO orders (item) SELECT unnest($1::text[]) RETURNING id, id::text",
		pq.Array([]string{"one", "two", "three"}))
	must(err)
	count := 0
	for rows.Next() {
		var id int64
		var text string
		must(rows.Scan(&id, &text))
		if fmt.Sprint(id) == text {
			count++
		}
	}
	check(count == 3, "RETURNING")

	result, err := db.Exec("INSERT INTO orders (item) VALUES ('four')")
	must(err)
	_, err = result.LastInsertId()
	check(err != nil, "LastInsertId() is an error")

	transaction, err := db.Begin()
	must(err)
	copy, err := transaction.Prepare(pq.CopyIn("orders", "item"))
	must(err)
	_, err = copy.Exec("five")
	must(err)
	must(copy.Close())
	must(transaction.Commit())
	must(db.QueryRow("SELECT count(DISTINCT id) FROM orders").Scan(&count))
	check(count == 5, "CopyIn() gives ids")

	_, err = db.Exec("CREATE TABLE typed AS SELECT 5::snowflake AS id, '{1,2}'::snowflake[] AS ids")
	must(err)
	var id int64
	var ids []int64
	must(db.QueryRow("SELECT id, ids FROM typed WHERE id = $1 AND id = ANY($2) AND ids @> $3",
		5, pq.Array([]int64{5}), pq.Array([]int64{1})).Scan(&id, pq.Array(&ids)))
	check(id == 5 && fmt.Sprint(ids) == "[1 2]", "snowflake: int64, and []int64")
}
