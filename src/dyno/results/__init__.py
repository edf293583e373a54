"""Other tools' results, and the reports made of them: files in, documents out."""
