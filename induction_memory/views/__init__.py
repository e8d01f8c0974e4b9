"""What a person looks at: attention maps."""
