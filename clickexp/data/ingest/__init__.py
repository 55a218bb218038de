"""What readers share: tables in pieces, ragged lists, text fields, ids and their names."""
