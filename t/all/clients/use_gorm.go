// needs: jinzhu/gorm lib/pq
// GORM 1: the key's type and default are named.
package main

import (
	"fmt"

	"github.com/jinzhu/gorm"
	_ "github.com/jinzhu/gorm/dialects/postgres"
)

type Post struct {
	ID    int64 `gorm:"type:bigint;primary_key;default:snowflake_id()"`
	Item  string
	Notes []Note
}

type Note struct {
	ID     int64 `gorm:"type:bigint;primary_key;default:snowflake_id()"`
	PostID int64
}

func check(ok bool, what string) {
	if ok {
		fmt.Println("ok -", what)
	} else {
		fmt.Println("not ok -", what)
	}
}

func main() {
	db, err := gorm.Open("postgres", "")
	if err != nil {
		panic(err)
	}
	check(db.AutoMigrate(&Post{}, &Note{}).Error == nil, "AutoMigrate() makes the tables")
	post := Post{Item: "one", Notes: []Note{{}, {}}}
	check(db.Create(&post).Error == nil, "Create() of a row and its references")
	var stored int64
	db.DB().QueryRow("SELECT id FROM posts").Scan(&stored)
	check(post.ID > 1<<53 && post.ID == stored, "Create() returns the id")
	var found Post
	check(db.Preload("Notes").First(&found, post.ID).Error == nil && len(found.Notes) == 2 &&
		found.Notes[0].PostID == post.ID, "First() and Preload() find the rows")
	check(db.AutoMigrate(&Post{}, &Note{}).Error == nil && db.Create(&Post{}).Error == nil,
		"after AutoMigrate() again, ids go on")
}
