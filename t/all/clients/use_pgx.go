// needs: jackc/pgx
// pgx: ids are int64, in batches and by CopyFrom too.
package main

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v4"
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
	ctx := context.Background()
	conn, err := pgx.Connect(ctx, "")
	must(err)
	const insert = "INSERT INTO orders (item) VALUES ($1) RETURNING id, id::text"
	batch := &pgx.Batch{}
	batch.Queue(insert, "one")
	batch.Queue(insert, "two")
	results := conn.SendBatch(ctx, batch)
	count := 0
	for i := 0; i < 2; i++ {
		var id int64
		var text string
		must(results.QueryRow().Scan(&id, &text))
		if fmt.Sprint(id) == text {
			count++
		}
	}
	must(results.Close())
	check(count == 2, "RETURNING in a batch")

	_, err = conn.CopyFrom(ctx, pgx.Identifier{"orders"}, []string{"item"},
		pgx.CopyFromRows([][]interface{}{{"three"}, {"four"}}))
	must(err)
	must(conn.QueryRow(ctx, "SELECT count(DISTINCT id) FROM orders").Scan(&count))
	check(count == 4, "CopyFrom() gives ids")
}
