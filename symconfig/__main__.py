from symconfig.cli.main import main

raise SystemExit(main())
