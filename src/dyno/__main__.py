from dyno.cli.main import main

raise SystemExit(main())
