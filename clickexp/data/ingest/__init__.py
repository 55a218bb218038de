"""Parts of readers: tables in pieces, ragged lists, text fields, and numbers for ids; formats live in `readers`."""
